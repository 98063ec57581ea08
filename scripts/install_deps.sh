#!/usr/bin/env bash
# install_deps.sh [cuda] [tests]: what Trireme needs to build on Debian 12 and Ubuntu 24.04 (and newer ones).
#
#   1. apt packages that are missing (as root, or through sudo);
#   2. oneDNN >= 3: the system's where it is new enough, else .deps/onednn;
#   3. Kokkos: one that CMake finds by itself (CMAKE_PREFIX_PATH, Spack, a module), else .deps/kokkos;
#   cuda:  also .deps/kokkos-cuda, where no Kokkos with CUDA is found (needs nvcc);
#   tests: also .deps/pytest-venv with h5py, for the tests that read our files with another program, and clang-format, and a Slurm for the tests of the job scripts;
#          with cuda: also cuobjdump, where the toolkit has none.
#
# Everything beside the apt packages stays inside the project (.deps/). Run again, it does only what is missing.
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
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "install_deps: unknown word \"$word\"; known: cuda, tests" >&2; exit 2 ;;
  esac
done

packages=(
  g++ cmake ninja-build ccache pkg-config git ca-certificates                        # toolchain
  libopenmpi-dev openmpi-bin                                                         # ranks
  libhdf5-openmpi-dev hdf5-tools                                                     # shards, checkpoints
  libtomlplusplus-dev libcli11-dev libfmt-dev libxxhash-dev nlohmann-json3-dev zlib1g-dev
  libsentencepiece-dev                                                               # tokens of text
  libgtest-dev                                                                       # tests
  python3 python3-pip python3-venv                                                   # .deps, scripts/check_layers.py
  dataset-fashion-mnist                                                              # scripts/quickstart.sh
)
[ "$with_tests" = yes ] && packages+=(shellcheck)
if [ "$with_tests" = yes ] && ! command -v sbatch >/dev/null; then
  packages+=(slurm-wlm munge) # tests/system/slurm_test.py starts one of its own (10 to 20 s to install); never over a site's Slurm
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
    fail "these packages are missing and neither root nor sudo is here; ask for them, or take them from Spack (docs/installing.md): ${missing[*]}"
  fi
  [ "$updated" = yes ] || as_root apt-get update -q </dev/null
  updated=yes
  as_root apt-get install -y -q --no-install-recommends "${missing[@]}" </dev/null
}
updated=no

# CMake's own word on whether a package is there: cmake_finds "ARGUMENTS OF find_package" [CONDITION OF CMAKE]
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
  say "no apt on this machine: taking compiler, MPI, HDF5 and the rest as given (docs/installing.md lists them)"
fi

if [ ! -e "$root/.deps/onednn/lib/cmake/dnnl/dnnl-config.cmake" ] && ! is_installed libdnnl-dev; then
  candidate=$(LC_ALL=C apt-cache policy libdnnl-dev 2>/dev/null | awk '/Candidate:/ { print $2 }' || true)
  if [ -n "$candidate" ] && dpkg --compare-versions "$candidate" ge 3; then
    install_packages libdnnl-dev
  fi
fi
if [ ! -e "$root/.deps/onednn/lib/cmake/dnnl/dnnl-config.cmake" ] && ! cmake_finds "dnnl 3 CONFIG REQUIRED"; then
  say "oneDNN 3.2 -> .deps/onednn"
  bash scripts/deps/onednn.sh "$root/.deps/onednn"
fi

if [ ! -e "$root/.deps/kokkos/lib/cmake/Kokkos/KokkosConfig.cmake" ] && ! cmake_finds "Kokkos REQUIRED" "Kokkos_VERSION VERSION_GREATER_EQUAL 3.4"; then
  say "Kokkos 3.4.01 -> .deps/kokkos (about half a minute)"
  bash scripts/deps/kokkos.sh "$root/.deps/kokkos"
fi

if [ "$with_cuda" = yes ] && ! cmp -s scripts/deps/kokkos.sh "$root/.deps/kokkos-cuda/made_by.sh"; then
  export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
  command -v nvcc >/dev/null || fail "cuda: nvcc is not on the PATH nor in ${CUDA_HOME:-/usr/local/cuda}/bin; install the CUDA toolkit (12.4 or newer) first"
  if ! cmake_finds "Kokkos REQUIRED" "Kokkos_VERSION VERSION_GREATER_EQUAL 3.4 AND \"CUDA\" IN_LIST Kokkos_DEVICES"; then
    say "Kokkos 3.4.01 with CUDA -> .deps/kokkos-cuda (one to two minutes)"
    bash scripts/deps/kokkos.sh "$root/.deps/kokkos-cuda" cuda
  fi
fi

python_packages="h5py==3.11.0 numpy==1.26.4 clang-format==23.1.5 black==26.10.1"
if python3 -c 'import sys; sys.exit(sys.version_info < (3, 13))'; then # the versions above have no wheels for it
  python_packages="h5py==3.14.0 numpy==2.2.6 clang-format==23.1.5 black==26.10.1"
fi
if [ "$with_tests" = yes ] && [ "$(cat "$root/.deps/pytest-venv/complete" 2>/dev/null)" != "$python_packages" ]; then
  say "Python environment with $python_packages -> .deps/pytest-venv"
  rm -rf "$root/.deps/pytest-venv"
  python3 -m venv "$root/.deps/pytest-venv"
  # shellcheck disable=SC2086 # words
  "$root/.deps/pytest-venv/bin/python3" -m pip install -q --disable-pip-version-check $python_packages
  echo "$python_packages" >"$root/.deps/pytest-venv/complete"
fi
disassembler="nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51" # reads code of older compilers too
if [ "$with_cuda$with_tests" = yesyes ] && ! command -v cuobjdump >/dev/null && [ "$(cat "$root/.deps/pytest-venv/disassembler" 2>/dev/null)" != "$disassembler" ]; then
  say "$disassembler -> .deps/pytest-venv"
  # shellcheck disable=SC2086 # words
  "$root/.deps/pytest-venv/bin/python3" -m pip install -q --disable-pip-version-check $disassembler
  echo "$disassembler" >"$root/.deps/pytest-venv/disassembler"
fi
say "everything is here"
