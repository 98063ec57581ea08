from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Trireme trains neural networks as a batch application for supercomputers: one C++20 program
    under mpirun or srun, with HDF5 shards and checkpoints and no Python at run time."""

    homepage = "https://example.org/trireme"  # replaced by the project's address where it is published
    # A working copy: `spack develop --path /path/to/trireme trireme@main`, or `spack dev-build`.
    git = "https://example.org/trireme.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests and run the unit tests with `spack install --test=root`")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    generator("ninja")

    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10:+mpi")
    depends_on("kokkos@4.3:+openmp")
    depends_on("onednn@3: cpu_runtime=omp")
    depends_on("tomlplusplus@3.3:")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("zlib-api")
    depends_on("sentencepiece@0.1.97:")
    depends_on("abseil-cpp", when="^sentencepiece@0.2.1:")  # whose headers hand out its status
    depends_on("googletest@1.12:", type=("build", "link", "test"), when="+tests")
    depends_on("python@3.8:", type=("build", "test"), when="+tests")

    # Kokkos (for one kind) and NCCL have to be built for the GPUs that we are built for: Spack's own choice would be none. Under gcc Kokkos needs to be told who compiles CUDA:
    # CMake's CUDA language, as we use it.
    conflicts("cuda_arch=none", when="+cuda", msg="trireme+cuda needs to know the GPUs: add cuda_arch=90 (H100, H200), 80 (A100) or another")
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9:")
        depends_on("nccl@2.20:")
        depends_on("kokkos@4.7.01:", when="^cuda@13:")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"kokkos+cuda+cmake_lang cuda_arch={arch}", when=f"cuda_arch={arch}")
            depends_on(f"nccl+cuda cuda_arch={arch}", when=f"cuda_arch={arch}")

    conflicts("%gcc@:11", msg="trireme is C++20 that GCC 12 and newer compile")
    conflicts("%clang@:15", msg="trireme is C++20 that Clang 16 and newer compile")

    def cmake_args(self):
        args = [
            self.define_from_variant("TRIREME_ENABLE_CUDA", "cuda"),
            self.define_from_variant("TRIREME_BUILD_TESTS", "tests"),
            self.define("TRIREME_CPU_ARCH", ""),  # Spack's compiler wrapper names the target
        ]
        if self.spec.satisfies("+cuda"):
            args.append(self.define("CMAKE_CUDA_ARCHITECTURES", ";".join(self.spec.variants["cuda_arch"].value)))
        return args

    def check(self):
        if self.spec.satisfies("+tests"):
            with working_dir(self.build_directory):
                ctest("-L", "^unit$", "--output-on-failure")

    def test_version(self):
        """the installed program starts, also where there is no GPU"""
        which(self.prefix.bin.trireme)("--version")
