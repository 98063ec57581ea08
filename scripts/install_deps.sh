#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# install_deps.sh [cuda] [tests]: installs the packages that Trireme needs on Debian 12, Debian
# 13 and Ubuntu 24.04.
#
#   1. missing apt packages (as root, or through sudo)
#   2. oneDNN >= 3: the package of the system if it is new enough, otherwise .deps/onednn
#   3. Kokkos: one that CMake finds by itself (CMAKE_PREFIX_PATH, Spack, a module),
#      otherwise .deps/kokkos
#   cuda:  also .deps/kokkos-cuda, unless CMake finds a Kokkos with CUDA (needs nvcc)
#   tests: also .deps/pytest-venv with h5py (tests that read our files with another program),
#          Pillow (images are compared with it), clang-format and black; shellcheck; and a Slurm
#          for the tests of the job scripts. With cuda also cuobjdump, if the toolkit has none.
#
# Everything except the apt packages stays inside the project (.deps/). A second run installs only
# what is still missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
say() { echo "install_deps: $*"; }
fail() { echo "install_deps: $*" >&2; exit 1; }

with_cuda=no
with_tests=no
for word in "$@"; do
  case $word in
    cuda) with_cuda=yes ;;
    tests) with_tests=yes ;;
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "install_deps: unknown word \"$word\"; known: cuda, tests" >&2; exit 2 ;;
  esac
done

packages=(
  # toolchain
  g++ cmake ninja-build ccache pkg-config git ca-certificates
  # MPI
  libopenmpi-dev openmpi-bin
  # shards and checkpoints
  libhdf5-openmpi-dev hdf5-tools
  libtomlplusplus-dev libcli11-dev libfmt-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev
  # sources of images
  libjpeg-dev libpng-dev libarchive-dev
  # tokenizer; pkg-config needs the second package where the first one does not bring it (Debian 13)
  libsentencepiece-dev libprotobuf-dev
  # tests
  libgtest-dev libgmock-dev
  # .deps and scripts/check_layers.py
  python3 python3-pip python3-venv
  # scripts/quickstart.sh
  dataset-fashion-mnist
)
[ "$with_tests" = yes ] && packages+=(shellcheck)
if [ "$with_tests" = yes ] && ! command -v sbatch >/dev/null; then
  # tests/system/slurm_test.py starts its own Slurm (10 to 20 s to install). A site's Slurm is kept.
  packages+=(slurm-wlm munge)
fi

as_root() {
  if [ "$(id -u)" = 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  else
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  fi
}
is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

install_packages() {
  local missing=() name
  for name in "$@"; do is_installed "$name" || missing+=("$name"); done
  [ ${#missing[@]} = 0 ] && return
  say "apt: ${missing[*]}"
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    fail "these packages are missing and neither root nor sudo is here; ask for them," \
      "or take them from Spack (docs/guides/install.md): ${missing[*]}"
  fi
  [ "$updated" = yes ] || as_root apt-get update -q </dev/null
  updated=yes
  as_root apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
}
updated=no

# cmake_finds "ARGUMENTS OF find_package" [CONDITION]: returns whether CMake finds the package and
# the condition (CMake code) holds.
cmake_finds() {
  local probe
  probe=$(mktemp -d)
  {
    echo "cmake_minimum_required(VERSION 3.25)"
    echo "project(probe LANGUAGES C CXX)"
    echo "find_package($1)"
    echo "if(NOT (${2:-TRUE}))"
    echo "  message(FATAL_ERROR \"not it\")"
    echo "endif()"
  } >"$probe/CMakeLists.txt"
  local found=0
  cmake -S "$probe" -B "$probe/build" -G Ninja >/dev/null 2>&1 || found=1
  rm -rf "$probe"
  return $found
}

if command -v apt-get >/dev/null; then
  install_packages "${packages[@]}"
else
  say "no apt on this machine: taking compiler, MPI, HDF5 and the rest as given" \
    "(docs/guides/install.md lists them)"
fi

onednn=$root/.deps/onednn/lib/cmake/dnnl/dnnl-config.cmake
if [ ! -e "$onednn" ] && ! is_installed libdnnl-dev; then
  candidate=$(
    LC_ALL=C apt-cache policy libdnnl-dev 2>/dev/null | awk '/Candidate:/ { print $2 }' || true
  )
  if [ -n "$candidate" ] && dpkg --compare-versions "$candidate" ge 3; then
    install_packages libdnnl-dev
  fi
fi
if [ ! -e "$onednn" ] && ! cmake_finds "dnnl 3 CONFIG REQUIRED"; then
  say "oneDNN 3.2 -> .deps/onednn"
  bash scripts/deps/onednn.sh "$root/.deps/onednn"
fi

kokkos_condition="Kokkos_VERSION VERSION_GREATER_EQUAL 3.4"
if [ ! -e "$root/.deps/kokkos/lib/cmake/Kokkos/KokkosConfig.cmake" ] &&
  ! cmake_finds "Kokkos REQUIRED" "$kokkos_condition"; then
  say "Kokkos 3.4.01 -> .deps/kokkos (about half a minute)"
  bash scripts/deps/kokkos.sh "$root/.deps/kokkos"
fi

made_by=$root/.deps/kokkos-cuda/made_by.sh
if [ "$with_cuda" = yes ] && ! cmp -s scripts/deps/kokkos.sh "$made_by"; then
  export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  command -v nvcc >/dev/null ||
    fail "cuda: nvcc is not on the PATH nor in ${CUDA_HOME:-/usr/local/cuda}/bin;" \
      "install the CUDA toolkit (12.4 or newer) first"
  if ! cmake_finds "Kokkos REQUIRED" "$kokkos_condition AND \"CUDA\" IN_LIST Kokkos_DEVICES"; then
    say "Kokkos 3.4.01 with CUDA -> .deps/kokkos-cuda (one to two minutes)"
    bash scripts/deps/kokkos.sh "$root/.deps/kokkos-cuda" cuda
  fi
fi

python_packages="h5py==3.11.0 numpy==1.26.4"
# The versions above have no wheels for Python 3.13 and newer.
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then
  python_packages="h5py==3.14.0 numpy==2.2.6"
fi
python_packages+=" clang-format==23.1.5 black==26.10.1 pillow==11.3.0"
python_packages+=" netCDF4==1.7.2 xarray==2025.1.2" # the test data of other programs
environment=$root/.deps/pytest-venv
if [ "$with_tests" = yes ] &&
  [ "$(cat "$environment/complete" 2>/dev/null)" != "$python_packages" ]; then
  say "Python environment with $python_packages -> .deps/pytest-venv"
  rm -rf "$environment"
  python3 -m venv "$environment"
  # shellcheck disable=SC2086 # words
  "$environment/bin/python3" -m pip install -q --disable-pip-version-check $python_packages
  echo "$python_packages" >"$environment/complete"
fi
# This version also reads the machine code of older compilers.
disassembler="nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51"
if [ "$with_cuda$with_tests" = yesyes ] && ! command -v cuobjdump >/dev/null &&
  [ "$(cat "$environment/disassembler" 2>/dev/null)" != "$disassembler" ]; then
  say "$disassembler -> .deps/pytest-venv"
  # shellcheck disable=SC2086 # words
  "$environment/bin/python3" -m pip install -q --disable-pip-version-check $disassembler
  echo "$disassembler" >"$environment/disassembler"
fi
say "everything is here"
