# SPDX-License-Identifier: Apache-2.0
"""Tests the Spack recipe with a stand-in for Spack's package API that records its directives.

Checks that the recipe is valid Python, uses only words of the API and declares the right packages.
Only Spack itself can tell whether it concretizes.
"""

import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

TRIREME = os.environ.get("TRIREME", "")
ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "spack_repo/trireme/packages/trireme/package.py"


class Directives:
    """Records the directives of the recipe: (directive, arguments, keywords).

    `when` includes the condition of a surrounding `with when(...)`.
    """

    def __init__(self):
        self.said, self.context = [], []

    def directive(self, name):
        def say(*arguments, **keywords):
            if self.context:
                keywords["when"] = " ".join(
                    self.context + ([keywords["when"]] if "when" in keywords else [])
                )
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
    build_directory = "spack-build"

    def define(self, name, value):
        return "-D%s=%s" % (name, value)

    def define_from_variant(self, name, variant):
        return self.define(name, self.spec.satisfies("+" + variant))


class CMakeBuilder:
    @staticmethod
    def define_cuda_architectures(package):
        value = package.spec.variants["cuda_arch"].value
        return package.define("CMAKE_CUDA_ARCHITECTURES", ";".join(value)) if value else ""


class CudaPackage:
    cuda_arch_values = ("80", "90", "100")


class Spec:
    def __init__(self, *words, cuda_arch=()):
        self.words = words
        self.variants = {"cuda_arch": types.SimpleNamespace(value=cuda_arch)}

    def satisfies(self, word):
        return word in self.words

    def __getitem__(self, name):
        return {"mpi": types.SimpleNamespace(mpicxx="/mpi/bin/mpicxx")}[name]


class Prefix(str):
    """A path whose attributes are the paths below it."""

    def __getattr__(self, name):
        return self.join(name)

    def join(self, name):
        return Prefix(os.path.join(self, name))


class SkipTest(Exception):
    pass


def which(path, required=False):
    """Returns an Executable, which fails unless the program ends with 0.

    With `output=str.split` it returns the output.
    """
    assert required and os.access(path, os.X_OK), path

    def run(*arguments, output=None):
        assert output in (None, str.split)
        result = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
        )
        assert result.returncode == 0, result.stdout
        return result.stdout

    return run


def load():
    directives = Directives()
    names = {
        name: directives.directive(name)
        for name in (
            "version",
            "variant",
            "depends_on",
            "conflicts",
            "license",
            "maintainers",
            "requires",
            "patch",
        )
    }
    # Spack adds this one to the module of every CMake package.
    modules = {
        "spack.package": {
            **names,
            "when": directives.when,
            "working_dir": contextlib.nullcontext,
            "which": which,
            "SkipTest": SkipTest,
            "ctest": directives.directive("ctest"),
        },
        "spack_repo.builtin.build_systems.cmake": {
            "CMakeBuilder": CMakeBuilder,
            "CMakePackage": CMakePackage,
            "generator": directives.directive("generator"),
        },
        "spack_repo.builtin.build_systems.cuda": {"CudaPackage": CudaPackage},
    }
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
            cls.dependencies.setdefault(re.match(r"[a-z0-9-]+", spec).group(), []).append(
                (spec, keywords)
            )

    def test_its_place(self):
        """Tests the layout of repositories of API 2: namespace folder, packages folder, package
        folder."""
        text = (ROOT / "spack_repo/trireme/repo.yaml").read_text()
        self.assertRegex(text, r"namespace: trireme\n")
        self.assertRegex(text, r"api: v2\.\d")
        self.assertEqual(
            [base.__name__ for base in self.package.__bases__], ["CMakePackage", "CudaPackage"]
        )

    def test_its_own_variant_is_tests(self):
        # Cuda and cuda_arch are variants of CudaPackage.
        self.assertEqual(
            [arguments[0] for arguments, _ in self.directives.of("variant")], ["tests"]
        )

    def test_lines_are_as_long_as_spack_takes_them(self):
        self.assertLess(max(map(len, RECIPE.read_text().splitlines())), 100)

    def test_languages_are_asked_for(self):
        for name in ("c", "cxx"):
            self.assertEqual(self.dependencies[name], [(name, {"type": "build"})])

    def test_what_cmake_looks_for_is_a_dependency(self):
        found = re.findall(
            r"^\s*(?:find_package|pkg_check_modules)\((\w+)",
            (ROOT / "cmake/TriremeDependencies.cmake").read_text(),
            re.M,
        )
        names = {
            "MPI": "mpi",
            "HDF5": "hdf5",
            "CLI11": "cli11",
            "xxhash": "xxhash",
            "ZLIB": "zlib-api",
            "JPEG": "libjpeg-turbo",
            "PNG": "libpng",
            "LibArchive": "libarchive",
            "dnnl": "onednn",
            "CUDAToolkit": "cuda",
            "Kokkos": "kokkos",
            "GTest": "googletest",
            "PkgConfig": "pkgconfig",
            "nlohmann_json": "nlohmann-json",
            "absl_status": "abseil-cpp",
        }
        for name in set(found) - {"Threads", "OpenMP"}:
            self.assertIn(names.get(name, name), self.dependencies, name)

    def test_mpi_is_the_virtual_one(self):
        self.assertIn("mpi", self.dependencies)
        for name in ("openmpi", "mpich", "mvapich"):
            self.assertNotIn(name, self.dependencies)
        self.assertIn("+mpi", self.dependencies["hdf5"][0][0])

    def test_cuda_without_an_architecture_is_refused_with_a_remedy(self):
        found = [
            keywords
            for arguments, keywords in self.directives.of("conflicts")
            if arguments == ("cuda_arch=none",)
        ]
        self.assertEqual([keywords["when"] for keywords in found], ["+cuda"])
        self.assertIn("cuda_arch=90", found[0]["msg"])

    def test_kokkos_and_nccl_are_built_for_our_gpus(self):
        for name in ("kokkos", "nccl"):
            for arch in CudaPackage.cuda_arch_values:
                specs = [
                    spec
                    for spec, keywords in self.dependencies[name]
                    if keywords.get("when") == "+cuda cuda_arch=" + arch
                ]
                self.assertEqual(len(specs), 1, (name, arch))
                self.assertTrue(
                    specs[0].endswith("cuda_arch=" + arch) and "+cuda" in specs[0], specs[0]
                )
        for_an_arch = [spec for spec, _ in self.dependencies["kokkos"] if "cuda_arch=" in spec]
        # With gcc Kokkos requires it.
        self.assertTrue(all("+cmake_lang" in spec for spec in for_an_arch), for_an_arch)
        # False by default.
        self.assertIn(
            (("^kokkos+cuda_lambda",), {"when": "+cuda ^kokkos@:4"}), self.directives.of("requires")
        )

    def test_no_dependency_names_its_own_package_in_its_condition(self):
        """`spack audit packages` calls such a dependency self-referential: Spack could choose
        whether the condition holds. `requires` may have such a condition."""
        self.assertGreater(len(self.dependencies), 10)
        for name, declared in self.dependencies.items():
            for spec, keywords in declared:
                in_condition = re.findall(
                    r"\^(?:\[[^]]*\] *)?([a-z0-9-]+)", keywords.get("when", "")
                )
                self.assertNotIn(name, in_condition, (spec, keywords))

    def test_nothing_of_cuda_is_wanted_without_it(self):
        for name in ("cuda", "cudnn", "nccl"):
            for _, keywords in self.dependencies[name]:
                self.assertIn("+cuda", keywords["when"])

    def test_the_options_are_those_of_the_project(self):
        options = re.findall(
            r"^(?:option|set)\((TRIREME_\w+)", (ROOT / "CMakeLists.txt").read_text(), re.M
        )
        package = self.package()
        always = {
            "TRIREME_CPU_ARCH": "",
            "MPI_CXX_COMPILER": "/mpi/bin/mpicxx",
            "CCACHE_PROGRAM": "",
        }
        for spec, tests, expected in (
            (Spec("~cuda"), True, {"TRIREME_ENABLE_CUDA": "False", "TRIREME_BUILD_TESTS": "True"}),
            (
                Spec("+tests"),
                False,
                {"TRIREME_ENABLE_CUDA": "False", "TRIREME_BUILD_TESTS": "True"},
            ),
            (
                Spec("+cuda", cuda_arch=("90",)),
                False,
                {
                    "TRIREME_ENABLE_CUDA": "True",
                    "TRIREME_BUILD_TESTS": "False",
                    "CMAKE_CUDA_ARCHITECTURES": "90",
                },
            ),
        ):
            package.spec, package.run_tests = spec, tests
            said = dict(argument[2:].split("=", 1) for argument in package.cmake_args() if argument)
            self.assertEqual(said, {**always, **expected})
            for name in said:
                self.assertTrue(
                    name in options
                    or name.startswith(("CMAKE_", "MPI_"))
                    or "find_program(%s " % name in (ROOT / "CMakeLists.txt").read_text(),
                    name,
                )

    def test_spack_runs_the_unit_tests(self):
        """Tests without ranks and launcher, which a build node may not have."""
        self.package().check()
        self.assertEqual(
            self.directives.of("ctest"), [(("-L", "^unit$", "--output-on-failure"), {})]
        )
        self.assertRegex((ROOT / "tests/unit/base/CMakeLists.txt").read_text(), r"LABEL unit\b")
        self.assertEqual(
            [keywords for _, keywords in self.dependencies["googletest"]],
            [{"type": "test"}, {"when": "+tests"}],
        )

    def test_its_own_tests_hold_of_the_program(self):
        """Runs the stand-alone tests on a tree like the installed one."""
        if not TRIREME:
            self.skipTest("TRIREME names no program")
        package = self.package()
        package.spec = Spec("~cuda")
        with tempfile.TemporaryDirectory() as folder:
            package.prefix = Prefix(folder)
            for place, content in (
                ("bin/trireme", TRIREME),
                ("share/trireme/inputs", ROOT / "inputs"),
                ("share/trireme/README.md", ROOT / "README.md"),
            ):
                os.makedirs(os.path.dirname(os.path.join(folder, place)), exist_ok=True)
                os.symlink(content, os.path.join(folder, place))
            os.mkdir(folder + "/stage")
            here = os.getcwd()
            os.chdir(folder + "/stage")
            try:
                package.test_version()
                package.test_training()
                self.assertTrue(pathlib.Path("runs/smoke-gpt/exit.json").exists(), os.listdir("."))
                package.spec = Spec("+cuda")
                self.assertRaises(SkipTest, package.test_training)
            finally:
                os.chdir(here)

    def test_the_environment_names_the_repository_and_both_devices(self):
        text = (ROOT / "spack.yaml").read_text()
        self.assertIn("trireme: ./spack_repo/trireme", text)
        for device in ("~cuda", "+cuda cuda_arch=90"):
            self.assertIn("device: [%s]" % device, text)


if __name__ == "__main__":
    unittest.main()
