# SPDX-License-Identifier: Apache-2.0
from spack_repo.builtin.build_systems.cmake import CMakeBuilder, CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Trireme(CMakePackage, CudaPackage):
    """Trireme trains neural networks as a batch application for supercomputers: one C++20 program
    under mpirun or srun, with HDF5 shards and checkpoints and no Python at run time."""

    # Placeholders until the project has a public address: until then a working copy is built, by
    # `spack develop --path /path/to/trireme trireme@main` or `spack dev-build`.
    homepage = "https://example.org/trireme"
    git = "https://example.org/trireme.git"

    license("Apache-2.0")

    version("main", branch="main")

    variant("tests", default=False, description="Build the tests, for ctest in the build folder")

    sanity_check_is_file = ["bin/trireme", "libexec/trireme"]

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    generator("ninja")

    depends_on("mpi@3.1:")
    depends_on("hdf5@1.10.3:+mpi")
    depends_on("kokkos@4.3:+openmp")
    depends_on("onednn@3: cpu_runtime=omp")
    depends_on("tomlplusplus@3.3:")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")
    depends_on("zlib-api")
    depends_on("libjpeg-turbo@2:")
    depends_on("libpng@1.6:")
    depends_on("libarchive@3.6: compression=bz2lib,lz4,lzma,zlib,zstd")
    depends_on("sentencepiece@0.1.97:")
    depends_on("abseil-cpp", when="^sentencepiece@0.2.1:")  # its headers use Abseil's status
    depends_on("googletest@1.12: +gmock", type="test")  # also for `spack install --test=root`
    depends_on("googletest@1.12: +gmock", when="+tests")
    depends_on("python@3.8:", type="build", when="+tests")

    # Kokkos (for one architecture) and NCCL must be built for the GPUs of the variant; Spack's
    # default would be none. With gcc Kokkos must know that CMake's CUDA language compiles CUDA.
    # For Kokkos 4 Spack disables extended lambdas, which our kernels need. That is a requirement:
    # a dependency on Kokkos whose condition names Kokkos is self-referential (spack audit).
    conflicts(
        "cuda_arch=none",
        when="+cuda",
        msg="trireme+cuda needs to know the GPUs: add cuda_arch=90 (H100, H200), 80 (A100) ...",
    )
    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9:")
        depends_on("nccl@2.20:")
        depends_on("kokkos@4.7.01:", when="^cuda@13:")
        requires("^kokkos+cuda_lambda", when="^kokkos@:4")
        for arch in CudaPackage.cuda_arch_values:
            depends_on(f"kokkos+cuda+cmake_lang cuda_arch={arch}", when=f"cuda_arch={arch}")
            depends_on(f"nccl+cuda cuda_arch={arch}", when=f"cuda_arch={arch}")

    conflicts("%gcc@:11", msg="trireme is C++20 that GCC 12 and newer compile")
    conflicts("%clang@:15", msg="trireme is C++20 that Clang 16 and newer compile")

    def cmake_args(self):
        return [
            self.define_from_variant("TRIREME_ENABLE_CUDA", "cuda"),
            self.define("TRIREME_BUILD_TESTS", self.run_tests or self.spec.satisfies("+tests")),
            self.define("TRIREME_CPU_ARCH", ""),  # Spack's compiler wrapper sets the target
            self.define("MPI_CXX_COMPILER", self.spec["mpi"].mpicxx),  # not the first one in PATH
            self.define("CCACHE_PROGRAM", ""),  # Spack has its own setting: config:ccache
            CMakeBuilder.define_cuda_architectures(self),
        ]

    def check(self):
        with working_dir(self.build_directory):
            ctest("-L", "^unit$", "--output-on-failure")

    def test_version(self):
        """the installed program starts, also without a GPU"""
        out = which(self.prefix.bin.trireme, required=True)("--version", output=str.split)
        assert out.startswith("trireme "), out

    def test_training(self):
        """a text becomes a dataset, and eight steps are trained on it"""
        if self.spec.satisfies("+cuda"):
            raise SkipTest("it would train on a GPU, and there may be none")
        trireme = which(self.prefix.bin.trireme, required=True)
        share = self.prefix.share.trireme
        data = "data/smoke-text"
        held_out = ("--hold-out", "0.1", "--hold-out-out", f"{data}/validation")
        trireme("shard", "text", share.join("README.md"), "--out", f"{data}/train", *held_out)
        trireme("train", share.inputs.smoke.join("gpt.toml"))
