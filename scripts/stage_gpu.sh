#!/usr/bin/env bash
# stage_gpu.sh [--build FOLDER] [STAGE]: packs a CUDA build and its tests for a machine that has a
# GPU and CUDA, but neither MPI nor HDF5 nor a network.
#
# The folder STAGE (build/gpu-stage) and the archive STAGE.tar.xz hold:
#   bin/        trireme, the kernel tests and their benchmark, mpirun
#   lib/        their libraries, except those of glibc and CUDA
#   plugins/    the plug-ins of Open MPI
#   scripts/    gpu_acceptance.sh with its parts
#   reference/  small datasets and the losses of the CPU, made here with the program of the preset
#               release
# On the other machine:  tar -xJf gpu-stage.tar.xz && ./scripts/gpu_acceptance.sh
#
# --build FOLDER packs an existing build. Without it the script builds build/cuda-stage: the preset
# cuda-release for any x86-64 processor with AVX2. The other machine needs the glibc of this machine
# or a newer one. TRIREME_CPU names the program that records the losses (build/release/bin/trireme).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
max_megabytes=50
build=
stage=
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --build)
      [ $# -ge 2 ] || {
        echo "stage_gpu: --build takes a folder" >&2
        exit 2
      }
      build=$2
      shift
      ;;
    -*) echo "stage_gpu: unknown option \"$1\"; known: --build, --help" >&2; exit 2 ;;
    *) stage=$1 ;;
  esac
  shift
done
stage=${stage:-build/gpu-stage}
say() { echo "stage_gpu: $*"; }
fail() { echo "stage_gpu: $*" >&2; exit 1; }

# shellcheck source=scripts/environment.sh
. scripts/environment.sh
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [ -z "$build" ]; then
  build=build/cuda-stage
  cmake --preset cuda-release -B "$build" -DTRIREME_CPU_ARCH=x86-64-v3
  cmake --build "$build" --target trireme tests_kernels
fi
cpu_program=${TRIREME_CPU:-build/release/bin/trireme}
for program in "$build/bin/trireme" "$build/bin/test_ops_linear" "$cpu_program"; do
  [ -x "$program" ] || fail "$program is missing; build it first" \
    "(the preset release for the CPU's losses, cuda-release with the target tests_kernels)"
done
command -v ompi_info >/dev/null ||
  fail "no ompi_info: only Open MPI's launcher and plug-ins are known here"

rm -rf "$stage" "$stage.tar.xz"
mkdir -p "$stage"/{bin,libexec,lib,plugins,pmix,share,etc,scripts/gpu}
stage=$(cd "$stage" && pwd)

# Programs, without debugging symbols.
cp -L "$build"/bin/trireme "$build"/bin/test_ops_* "$build"/bin/bench_ops "$stage/libexec/"
strip --strip-unneeded "$stage"/libexec/*

# Open MPI 4: the launcher, its daemon, the message texts and the plug-ins. Plug-ins for fabrics and
# batch systems are left out, since a single machine does not use them.
where() { ompi_info --path "$1" --parsable | head -n 1 | sed 's/.*://'; }
cp -L "$(where bindir)/orterun" "$stage/libexec/mpirun"
cp -L "$(where bindir)/orted" "$stage/libexec/orted"
cp -L "$(where pkglibdir)"/mca_*.so "$stage/plugins/"
fabrics=(ucx ofi psm usnic portals openib libfabric cuda tm slurm pmix_s1 pmix_s2)
for fabric in "${fabrics[@]}"; do rm -f "$stage"/plugins/*"$fabric"*; done
cp -rL "$(where pkgdatadir)/." "$stage/share/"
cp -rL "$(where sysconfdir)/." "$stage/etc/"
one_plugin=$(find /usr/lib -name 'pmix_mca_*.so' -print -quit)
[ -z "$one_plugin" ] || cp -L "$(dirname "$one_plugin")"/pmix_mca_*.so "$stage/pmix/"

# Libraries of the programs and plug-ins. Those of glibc and CUDA are left to the other machine.
cuda_libraries='libcuda|libcudart|libcudnn|libcublas|libcublasLt|libnccl|libnvidia'
system_libraries="/(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|$cuda_libraries)[.-][^/]*\$"
needs() { ldd "$1" 2>/dev/null | awk '/=> \//{ print $3 }' | grep -vE "$system_libraries" || true; }
for file in "$stage"/libexec/* "$stage"/plugins/*.so "$stage"/pmix/*.so; do needs "$file"; done |
  sort -u | while read -r library; do cp -Lu "$library" "$stage/lib/"; done

# bin/NAME starts libexec/NAME with the staged libraries. Other programs of the machine, also its
# Python, keep their own libraries.
for program in "$stage"/libexec/*; do
  cat >"$stage/bin/${program##*/}" <<'PROGRAM'
#!/bin/sh
stage=$(cd "$(dirname "$0")/.." && pwd)
LD_LIBRARY_PATH=$stage/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} exec "$stage/libexec/${0##*/}" "$@"
PROGRAM
  chmod +x "$stage/bin/${program##*/}"
done

# Variables that tell Open MPI and PMIx their folders, which differ from those of the build.
cat >"$stage/stage.sh" <<'ENV'
# shellcheck shell=bash
stage=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PATH=$stage/bin:$PATH
export OPAL_PREFIX=$stage OPAL_BINDIR=$stage/bin OPAL_LIBDIR=$stage/lib
export OPAL_PKGLIBDIR=$stage/plugins
export OPAL_DATADIR=$stage/share OPAL_PKGDATADIR=$stage/share OPAL_SYSCONFDIR=$stage/etc
export PMIX_PREFIX=$stage PMIX_LIBDIR=$stage/lib PMIX_PKGLIBDIR=$stage/pmix
export PMIX_PKGDATADIR=$stage/share PMIX_MCA_mca_base_component_path=$stage/pmix PMIX_MCA_gds=hash
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_plm=isolated OMPI_MCA_pml=ob1 OMPI_MCA_btl=self,vader,tcp
export OMPI_MCA_btl_vader_single_copy_mechanism=none
ENV

# Checks that the stage is complete: every library except those of glibc and CUDA is found in it,
# and the programs start with the stage alone.
for file in "$stage"/libexec/*; do
  outside=$(
    LD_LIBRARY_PATH=$stage/lib ldd "$file" | awk '/=> / && !/linux-vdso/ { print $3 }' |
      grep -vE "$system_libraries" | grep -v "^$stage/lib/" || true
  )
  [ -z "$outside" ] || fail "${file##*/} needs what is not staged: $outside"
done
for words in "trireme --version" "mpirun --version"; do
  # shellcheck disable=SC2016,SC2086 # expanded by the shell with an empty environment; two words
  env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="${CUDA_HOME:-/usr/local/cuda}/lib64" \
    bash -c '. "$0/stage.sh" && exec "$@"' "$stage" $words >/dev/null ||
    fail "$words does not start from the stage"
done

mkdir -p "$stage/tests/data"
cp tests/data/text.txt "$stage/tests/data/"
cp scripts/gpu_acceptance.sh scripts/torch_resnet.py scripts/torch_gpt.py "$stage/scripts/"
cp scripts/gpu/*.py scripts/gpu/environment.sh "$stage/scripts/gpu/"
say "losses of the CPU ($cpu_program)"
python3 scripts/gpu/parity.py record "$stage/reference" --trireme "$root/${cpu_program#"$root/"}"
rm -rf "$stage/reference/work" "$stage"/reference/*.source

# With -9 xz finds what the test programs have in common; the archive is a third smaller.
XZ_OPT=-9 tar -C "$stage" -cJf "$stage.tar.xz" .
megabytes=$(($(stat -c %s "$stage.tar.xz") / 1000000))
say "$stage.tar.xz: $megabytes MB ($(du -sm "$stage" | cut -f 1) MiB unpacked)"
[ "$megabytes" -le "$max_megabytes" ] ||
  fail "the archive has $megabytes MB, more than $max_megabytes"
