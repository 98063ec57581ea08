#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test.sh: shows that the program works on this machine. Installs missing packages (also h5py, for
# the tests that read our files in h5py). Builds the preset release. Runs the tests that are not
# labelled long: those of every library, of kernels and of exchanges between ranks, and the shorter
# ones of the whole program.
#
# test.sh --all [--no-cuda] [--no-asan]: runs every test, as continuous integration does.
#   1. If nvcc is found: builds the program and the kernel tests of the preset cuda-release. The
#      program must start without a driver, run the commands that need no device, and name the
#      missing driver for the other ones. The build is packed as for a machine with a GPU
#      (stage_gpu.sh) and started where there are no sources. The kernel tests run on the GPU;
#      without one they are skipped, and the build is for one architecture (sm_90), with less
#      optimization of host code.
#   2. Builds unit and kernel tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs
#      them. Kernels run on the CPU, whose memory AddressSanitizer checks. Each reader of untrusted
#      files reads changed files for 10 s (tests/fuzz). fuzz.sh does it longer.
#   3. Checks the dependencies between the libraries (check_layers.py), the text of code and
#      documents (check_text.py), the pictures (figures/make.py), the format of the sources
#      (clang-format, black) and the scripts (shellcheck).
#   4. Runs the other tests of the preset release, those of kernels again. GPU cases are skipped if
#      there is no GPU. --no-asan runs the unit tests here.
#
# --werror: warnings of the compiler are errors. A second run builds only the changed files. Failed
# steps are named at the end, after the last output of their failed tests and the first error of
# their builds; the exit status is then 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
all=no
cuda=auto
asan=yes
werror=OFF
only_with_all=""
for word in "$@"; do
  case $word in
    --all) all=yes ;;
    --no-cuda) cuda=no only_with_all+=" $word" ;;
    --no-asan) asan=no only_with_all+=" $word" ;;
    --werror) werror=ON ;;
    -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *)
      echo "test.sh: unknown option \"$word\"; known: --all, --no-cuda, --no-asan, --werror" >&2
      exit 2
      ;;
  esac
done
if [ "$all" = no ]; then
  if [ -n "$only_with_all" ]; then
    echo "test.sh: options that leave out a part of --all need --all:" \
      "test.sh --all$only_with_all" >&2
    exit 2
  fi
  cuda=no
  asan=no
fi
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [ "$cuda" = auto ] && ! command -v nvcc >/dev/null; then
  cuda=no
  echo "test.sh: no nvcc on this machine: the CUDA build is left out"
fi

steps=3
if [ "$all" = yes ]; then
  steps=8
  [ "$cuda" = no ] || steps=$((steps + 3))
  [ "$asan" = no ] || steps=$((steps + 2))
fi
failed=()
step_number=0
begin() {
  step_number=$((step_number + 1))
  echo "== step $step_number of $steps, minute $((SECONDS / 60)): $1"
}

# step NAME COMMAND...: runs one step. A failed step is remembered and the script continues.
step() {
  local name=$1 start=$SECONDS
  shift
  begin "$name"
  if "$@"; then
    echo "== $name: passed ($((SECONDS - start)) s)"
  else
    failed+=("$name")
    echo "== $name: FAILED ($((SECONDS - start)) s)"
  fi
}

# build PRESET [--target ...]
build() {
  local preset=$1
  shift
  # Sanitizers cause false alarms. nvcc does too, but the option is not for code in CUDA. With the
  # same options ccache compiles most files of the two other builds only once.
  local strict=$werror
  [ "$preset" != asan ] || strict=OFF
  local options=("-DTRIREME_WERROR=$strict")
  if [ "$preset" = cuda-release ]; then
    options+=(-DTRIREME_STAGE=ON) # a test packs it (stage_gpu.sh)
    # Without a GPU the kernels only have to compile. With one architecture and less optimized host
    # code that takes half the time.
    nvidia-smi -L >/dev/null 2>&1 ||
      options+=(-DCMAKE_CUDA_ARCHITECTURES=90 "-DCMAKE_CUDA_FLAGS_RELEASE=-O1 -DNDEBUG")
  fi
  logged --quiet "build/$preset.configure.log" cmake --preset "$preset" "${options[@]}" &&
    logged "build/$preset.build.log" cmake --build --preset "$preset" "$@"
}

# logged [--quiet] LOG COMMAND...: runs a part of a build and remembers its log if it fails.
broken_builds=()
logged() {
  scripts/run_logged.sh "$@" && return
  [ "$1" != --quiet ] || shift
  broken_builds+=("$1")
  return 1
}

# tests PRESET [options of ctest]
tests() {
  local preset=$1
  shift
  ctest --preset "$preset" --progress --output-junit "../$preset.tests.xml" "$@"
}

check_format() {
  find include kernels src tests -name '*.[ch]pp' -print0 |
    xargs -0 -n 64 -P 2 .deps/pytest-venv/bin/clang-format --dry-run --Werror &&
    find scripts tests spack_repo -name '*.py' -print0 |
    xargs -0 .deps/pytest-venv/bin/black --check --quiet
}

check_scripts() {
  if ! command -v shellcheck >/dev/null; then
    echo "no shellcheck on this machine: skipped"
    return
  fi
  local files
  mapfile -t files < <(
    find . -maxdepth 4 -type f \
      \( -path './scripts/*.sh' -o -path './slurm/*.sh' -o -path './.ci/*' \)
  )
  shellcheck -x "${files[@]}"
}

words=(tests)
[ "$cuda" = no ] || words+=(cuda)
begin "packages"
scripts/install_deps.sh "${words[@]}"
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
mkdir -p build
rm -f build/*.tests.xml

if [ "$all" = no ]; then
  step "release: build" build release --target trireme tests_short
  step "release: tests" tests release -j 2 -LE '^long$'
else
  # Unit tests run once: with sanitizers, if those are built and do not disturb them.
  release_targets=()
  release_tests=()
  if [ "$asan" = yes ]; then
    release_targets=(--target trireme test_headers)
    release_targets+=(tests_unsanitized tests_kernels tests_mpi tests_system)
    release_tests=(-L '^(unsanitized|kernels|mpi|system)$')
  fi
  step "release: build" build release "${release_targets[@]}"
  if [ "$cuda" != no ]; then
    step "cuda-release: build" build cuda-release --target trireme tests_kernels
    step "cuda-release: without a driver" tests cuda-release -j 2
    step "cuda-release: on a GPU" tests gpu
  fi
  if [ "$asan" = yes ]; then
    step "sanitizers: build" build asan --target tests_unit tests_kernels tests_fuzz
    step "sanitizers: tests" tests asan -j 2 -L '^(unit|kernels|fuzz)$' -E '^ops.*\.emulated$'
  fi
  step "arrows between the libraries" python3 scripts/check_layers.py
  step "text of code and documents" python3 scripts/check_text.py
  step "pictures of the documents" python3 scripts/figures/make.py --check
  step "clang-format and black" check_format
  step "shellcheck" check_scripts
  step "release: tests" tests release -j 2 "${release_tests[@]}"
fi

if [ ${#failed[@]} -gt 0 ]; then
  # Printed last, so that a log that keeps only its end still has it.
  shopt -s nullglob # no report exists if no test could start
  python3 scripts/failed_tests.py build/*.tests.xml
  for log in "${broken_builds[@]}"; do
    echo "-- the first error of $log:"
    python3 scripts/first_error.py "$log"
  done
  printf 'test.sh: failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "test.sh: all steps passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
