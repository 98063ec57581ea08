#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# stage_gpu.sh [--architectures LIST] [--build FOLDER] [--no-archive] [STAGE]: packs a CUDA build
# and its tests for a machine that has a GPU and CUDA, but neither MPI nor HDF5 nor a network.
#
# From a fresh clone it installs what is missing (install_deps.sh cuda), builds the program that
# records the CPU's losses and the programs of the stage, packs and checks them. The folder STAGE
# (build/gpu-stage) and the archive STAGE.tar.xz hold:
#   bin/        starts the programs of libexec/ with the libraries of lib/
#   libexec/    trireme, the kernel tests and their benchmark, mpirun and its daemon
#   lib/        their libraries, except those of glibc and CUDA
#   plugins/    the plug-ins of Open MPI; pmix/: of PMIx
#   scripts/    gpu_session.sh with its parts
#   reference/  small datasets and the losses of the CPU
# On the other machine:  python3 -m tarfile -e gpu-stage.tar.xz T && T/scripts/gpu_session.sh 1
#
# The stage may be moved, and nothing in it has a path of the sources. It runs on any x86-64
# processor with AVX2, and needs the glibc of this machine or a newer one.
#
# --architectures 90  compiles for these GPUs only: half the time and size of 80-real;90
# --build FOLDER  packs an existing build with TRIREME_STAGE=ON
# --no-archive    leaves out STAGE.tar.xz
# TRIREME_CPU     names the program that records the losses (that of the preset release, built here)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
max_megabytes=45
build=
architectures=
stage=
archive=yes
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    --build | --architectures)
      [ $# -ge 2 ] || {
        echo "stage_gpu: $1 takes a value" >&2
        exit 2
      }
      if [ "$1" = --build ]; then build=$2; else architectures=$2; fi
      shift
      ;;
    --no-archive) archive=no ;;
    -*)
      echo "stage_gpu: unknown option \"$1\"; known: --architectures, --build, --no-archive," \
        "--help" >&2
      exit 2
      ;;
    *)
      [ -z "$stage" ] || {
        echo "stage_gpu: one STAGE, not $stage and $1" >&2
        exit 2
      }
      stage=$1
      ;;
  esac
  shift
done
stage=${stage:-build/gpu-stage}
if [ -e "$stage" ] && [ ! -e "$stage/stage.sh" ] && [ -n "$(ls -A "$stage")" ]; then
  echo "stage_gpu: $stage is in use and no earlier stage; give a new folder" >&2
  exit 2
fi
say() { echo "stage_gpu: $* ($SECONDS s)"; }
fail() { echo "stage_gpu: $*" >&2; exit 1; }

# shellcheck source=scripts/environment.sh
. scripts/environment.sh
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
cpu_program=${TRIREME_CPU:-}
if [ -z "$build" ]; then
  scripts/install_deps.sh cuda
  build=build/cuda-stage
  cmake --preset cuda-release -B "$build" -DTRIREME_CPU_ARCH=x86-64-v3 -DTRIREME_STAGE=ON \
    ${architectures:+"-DCMAKE_CUDA_ARCHITECTURES=$architectures"}
  cmake --build "$build" --target trireme tests_kernels
  say "built: the stage"
fi
if [ -z "$cpu_program" ]; then
  [ -e build/release/build.ninja ] || cmake --preset release
  cmake --build --preset release --target trireme
  cpu_program=build/release/bin/trireme
  say "built: the program for the CPU"
fi
for program in "$build"/{libexec/trireme,bin/test_ops_linear} "$cpu_program"; do
  [ -x "$program" ] || fail "$program is missing; build it first" \
    "(the preset release for the CPU's losses, cuda-release with TRIREME_STAGE=ON and the target" \
    "tests_kernels)"
done
[ -e "$build/lib/libtrireme_kernels.so" ] ||
  fail "$build has no shared libraries; configure it with -DTRIREME_STAGE=ON"
command -v ompi_info >/dev/null ||
  fail "no ompi_info: only Open MPI's launcher and plug-ins are known here"

rm -rf "$stage" "$stage.tar.xz"
mkdir -p "$stage"/{bin,libexec,lib,plugins,pmix,share,etc,scripts/{gpu,compare},tests/data}
stage=$(cd "$stage" && pwd)
touch "$stage/stage.sh" # marks the folder, also if it stays incomplete

# Programs and libraries of our own, without debugging symbols.
cp -L "$build"/libexec/trireme "$build"/bin/test_ops_* "$stage/libexec/"
cp -L "$build"/lib/libtrireme_*.so "$stage/lib/"
strip --strip-unneeded "$stage"/libexec/* "$stage"/lib/*
own_files=("$stage"/libexec/* "$stage"/lib/*)
cp "$build/bin/mix.json" "$stage/libexec/"

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
export LD_LIBRARY_PATH=$root/.deps/onednn/lib:${CUDA_HOME:-/usr/local/cuda}/lib64
needs() { ldd "$1" 2>/dev/null | awk '/=> \//{ print $3 }' | grep -vE "$system_libraries" || true; }
for file in "${own_files[@]}" "$stage"/libexec/* "$stage"/plugins/*.so "$stage"/pmix/*.so; do
  needs "$file"
done | grep -v "^$stage/" | sort -u | while read -r library; do
  cp -Lu "$library" "$stage/lib/"
done
unset LD_LIBRARY_PATH

# bin/NAME starts libexec/NAME with the staged libraries: those of Open MPI have search paths of
# their own, in which an RPATH of the program does not count. Other programs of the machine, also
# its Python, keep their own libraries.
for program in "$stage"/libexec/*; do
  [ -x "$program" ] || continue
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

cp tests/data/text.txt "$stage/tests/data/"
cp scripts/gpu_session.sh "$stage/scripts/"
cp scripts/compare/{__init__,torch_resnet,torch_gpt}.py "$stage/scripts/compare/"
cp scripts/gpu/*.py scripts/gpu/environment.sh "$stage/scripts/gpu/"
say "losses of the CPU, by $cpu_program"
python3 scripts/gpu/parity.py "$stage/reference" --trireme "$(realpath "$cpu_program")"
rm -rf "$stage/reference/work" "$stage"/reference/*.source

# 1. Every library except those of glibc and CUDA is found in the stage.
cuda_folder=${CUDA_HOME:-/usr/local/cuda}/lib64
for file in "${own_files[@]}" "$stage"/libexec/mpirun "$stage"/libexec/orted; do
  outside=$(
    LD_LIBRARY_PATH=$stage/lib:$cuda_folder ldd "$file" |
      awk '/=> / && !/linux-vdso/ { print $3 }' |
      grep -vE "$system_libraries" | grep -v "^$stage/" || true
  )
  [ -z "$outside" ] || fail "${file##*/} needs what is not staged: $outside"
done
# 2. Nothing has a path of the sources or of a build. Libraries of the system keep their own paths.
for folder in "$root" "$(realpath "$root")" "$(realpath .deps)"; do
  found=$(grep -rlaF "$folder/" "$stage" || true)
  [ -z "$found" ] || fail "these files have a path of $folder:" "$found"
done
# Only the section of constants is read: bytes of compressed kernels may look like a path by chance.
character='[[:alnum:]_.+-]'
source_path="(^|[^[:alnum:]_.+/-])(/$character+)+/$character+\.(c|cc|cpp|cu|h|hpp|cuh)\b"
for file in "${own_files[@]}"; do
  found=$(readelf -p .rodata "$file" | grep -oE "$source_path" | grep -v '^.\?/usr/' || true)
  [ -z "$found" ] || fail "${file##*/} has paths of sources: $found"
done
# 3. The programs start from the stage alone.
for words in "trireme --version" "mpirun --version"; do
  # shellcheck disable=SC2016,SC2086 # expanded by the shell with an empty environment; two words
  env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$cuda_folder" \
    bash -c '. "$0/stage.sh" && exec "$@"' "$stage" $words >/dev/null ||
    fail "$words does not start from the stage"
done
# 4. They also do where the sources are hidden. Exit code 77: this user may not hide them.
STAND_IN_CUDA=$(realpath "$build")/lib/libstand_in_cuda.so
export STAND_IN_CUDA GPU_STAGE=$stage
tested=0
python3 tests/system/gpu_stage_test.py || tested=$?
[ $tested = 0 ] || [ $tested = 77 ] || fail "the stage does not pass its test"

if [ "$archive" = no ]; then
  say "$stage: $(du -sm "$stage" | cut -f 1) MiB"
  exit
fi
# With -9 xz finds what the programs have in common.
XZ_OPT=-9 tar -C "$stage" -cJf "$stage.tar.xz" .
megabytes=$(($(stat -c %s "$stage.tar.xz") / 1000000))
say "$stage.tar.xz: $megabytes MB ($(du -sm "$stage" | cut -f 1) MiB unpacked)"
[ "$megabytes" -le "$max_megabytes" ] ||
  fail "the archive has $megabytes MB, more than $max_megabytes"
