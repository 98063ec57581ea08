"""The Spack recipe, run with a stand-in for Spack's package API that writes down its directives: that it is Python, keeps to the API's words and says what it should.
Whether it concretizes only Spack itself can tell."""

import pathlib
import re
import sys
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "spack_repo/trireme/packages/trireme/package.py"


class Directives:
    """What the recipe said: (directive, arguments, keywords); `when` holds also that of a surrounding `with when(...)`."""

    def __init__(self):
        self.said, self.context = [], []

    def directive(self, name):
        def say(*arguments, **keywords):
            if self.context:
                keywords["when"] = " ".join(self.context + ([keywords["when"]] if "when" in keywords else []))
            self.said.append((name, arguments, keywords))
        return say

    def when(self, spec):
        directives = self

        class Context:
            def __enter__(self):
                directives.context.append(spec)

            def __exit__(self, *_):
                directives.context.pop()
        return Context()

    def of(self, name):
        return [(arguments, keywords) for said, arguments, keywords in self.said if said == name]


class CMakePackage:
    def define(self, name, value):
        return "-D%s=%s" % (name, value)

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.satisfies("+" + variant))


class CudaPackage:
    cuda_arch_values = ("80", "90", "100")


class Spec:
    def __init__(self, *words, cuda_arch=()):
        self.words = words
        self.variants = {"cuda_arch": types.SimpleNamespace(value=cuda_arch)}

    def satisfies(self, word):
        return word in self.words


def load():
    directives = Directives()
    names = {name: directives.directive(name) for name in ("version", "variant", "depends_on", "conflicts", "license", "maintainers", "requires", "patch")}
    modules = {"spack.package": {**names, "when": directives.when, "working_dir": None, "which": None},
               "spack_repo.builtin.build_systems.cmake": {"CMakePackage": CMakePackage, "generator": directives.directive("generator")},
               "spack_repo.builtin.build_systems.cuda": {"CudaPackage": CudaPackage}}
    made = []
    for name, content in modules.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            path = ".".join(parts[:i])
            if path not in sys.modules:
                sys.modules[path] = types.ModuleType(path)
                made.append(path)
        vars(sys.modules[name]).update(content)
    scope = {"__name__": "recipe"}
    try:
        exec(compile(RECIPE.read_text(), str(RECIPE), "exec"), scope)
    finally:
        for path in made:
            del sys.modules[path]
    return scope["Trireme"], directives


class Recipe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.package, cls.directives = load()
        cls.dependencies = {}
        for (spec,), keywords in cls.directives.of("depends_on"):
            cls.dependencies.setdefault(re.match(r"[a-z0-9-]+", spec).group(), []).append((spec, keywords))

    def test_its_place(self):
        """Layout of repositories of API 2: the folder is the namespace, the package's folder its name."""
        text = (ROOT / "spack_repo/trireme/repo.yaml").read_text()
        self.assertRegex(text, r"namespace: trireme\n")
        self.assertRegex(text, r"api: v2\.\d")
        self.assertEqual([base.__name__ for base in self.package.__bases__], ["CMakePackage", "CudaPackage"])

    def test_variants(self):
        self.assertEqual([arguments[0] for arguments, _ in self.directives.of("variant")], ["tests"])  # cuda and cuda_arch are CudaPackage's

    def test_languages_are_asked_for(self):
        for name in ("c", "cxx"):
            self.assertEqual(self.dependencies[name], [(name, {"type": "build"})])

    def test_what_cmake_looks_for_is_a_dependency(self):
        found = re.findall(r"^\s*(?:find_package|pkg_check_modules)\((\w+)", (ROOT / "cmake/TriremeDependencies.cmake").read_text(), re.M)
        names = {"MPI": "mpi", "HDF5": "hdf5", "CLI11": "cli11", "xxhash": "xxhash", "ZLIB": "zlib-api", "dnnl": "onednn", "CUDAToolkit": "cuda", "Kokkos": "kokkos", "GTest": "googletest",
                 "PkgConfig": "pkgconfig", "nlohmann_json": "nlohmann-json", "absl_status": "abseil-cpp"}
        for name in set(found) - {"Threads", "OpenMP"}:
            self.assertIn(names.get(name, name), self.dependencies, name)

    def test_mpi_is_the_virtual_one(self):
        self.assertIn("mpi", self.dependencies)
        for name in ("openmpi", "mpich", "mvapich"):
            self.assertNotIn(name, self.dependencies)
        self.assertIn("+mpi", self.dependencies["hdf5"][0][0])

    def test_cuda_without_an_architecture_is_refused_with_a_remedy(self):
        found = [keywords for arguments, keywords in self.directives.of("conflicts") if arguments == ("cuda_arch=none",)]
        self.assertEqual([keywords["when"] for keywords in found], ["+cuda"])
        self.assertIn("cuda_arch=90", found[0]["msg"])

    def test_kokkos_and_nccl_are_built_for_our_gpus(self):
        for name in ("kokkos", "nccl"):
            for arch in CudaPackage.cuda_arch_values:
                specs = [spec for spec, keywords in self.dependencies[name] if keywords.get("when") == "+cuda cuda_arch=" + arch]
                self.assertEqual(len(specs), 1, (name, arch))
                self.assertTrue(specs[0].endswith("cuda_arch=" + arch) and "+cuda" in specs[0], specs[0])
        self.assertTrue(all("+cmake_lang" in spec for spec, _ in self.dependencies["kokkos"] if "+cuda" in spec))  # under gcc Kokkos refuses to do without

    def test_nothing_of_cuda_is_wanted_without_it(self):
        for name in ("cuda", "cudnn", "nccl"):
            for _, keywords in self.dependencies[name]:
                self.assertIn("+cuda", keywords["when"])

    def test_the_options_are_those_of_the_project(self):
        options = re.findall(r"^(?:option|set)\((TRIREME_\w+)", (ROOT / "CMakeLists.txt").read_text(), re.M)
        package = self.package()
        for spec, expected in ((Spec("+tests"), {"TRIREME_ENABLE_CUDA": "False", "TRIREME_BUILD_TESTS": "True", "TRIREME_CPU_ARCH": ""}),
                               (Spec("+cuda", cuda_arch=("90",)), {"TRIREME_ENABLE_CUDA": "True", "TRIREME_BUILD_TESTS": "False", "TRIREME_CPU_ARCH": "", "CMAKE_CUDA_ARCHITECTURES": "90"})):
            package.spec = spec
            said = dict(argument[2:].split("=", 1) for argument in package.cmake_args())
            self.assertEqual(said, expected)
            for name in said:
                self.assertTrue(name in options or name.startswith("CMAKE_"), name)

    def test_the_environment_names_the_repository_and_both_devices(self):
        text = (ROOT / "spack.yaml").read_text()
        self.assertIn("trireme: ./spack_repo/trireme", text)
        for device in ("~cuda", "+cuda cuda_arch=90"):
            self.assertIn("device: [%s]" % device, text)


if __name__ == "__main__":
    unittest.main()
