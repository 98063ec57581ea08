#!/usr/bin/env bash
# test.sh [--no-cuda] [--no-asan] [--werror]: everything that can be tested on this machine.
#   1. installs what is missing (also h5py, for the tests that read our files with another program)
#   2. builds the preset release with all tests
#   3. where nvcc is found: builds the program and the kernel tests of the preset cuda-release; the program must start without a driver, do there what
#      needs no device, and say what is missing for the rest; the kernel tests run on the GPU, and are reported as skipped where there is none
#   4. builds unit and kernel tests with AddressSanitizer and UndefinedBehaviorSanitizer and runs them, kernels on the CPU, whose memory AddressSanitizer knows
#   5. the arrows between the libraries (check_layers.py), clang-format of the sources, shellcheck of the scripts
#   6. runs all tests of the preset release; GPU cases are reported as skipped where there is none
# Run again, only what changed is built. A step that fails is named at the end, with what its failed tests printed last; exit 1.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
cuda=auto
asan=yes
werror=OFF
for word in "$@"; do
  case $word in
    --no-cuda) cuda=no ;;
    --no-asan) asan=no ;;
    --werror) werror=ON ;;
    -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "test.sh: unknown option \"$word\"; known: --no-cuda, --no-asan, --werror" >&2; exit 2 ;;
  esac
done
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
if [ "$cuda" = auto ] && ! command -v nvcc >/dev/null; then
  cuda=no
  echo "test.sh: no nvcc on this machine: the CUDA build is left out"
fi

failed=()
step() { # step NAME COMMAND...: goes on after a failure, which is named at the end
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  if "$@"; then
    echo "== $name: passed ($((SECONDS - start)) s)"
  else
    failed+=("$name")
    echo "== $name: FAILED ($((SECONDS - start)) s)"
  fi
}

build() { # build PRESET [--target ...]
  local preset=$1
  shift
  local strict=OFF # sanitizers and nvcc bring false alarms of their own: warnings are errors in the release build only
  [ "$preset" != release ] || strict=$werror
  cmake --preset "$preset" -DTRIREME_WERROR=$strict >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log"; return 1; }
  cmake --build --preset "$preset" "$@"
}

tests() { # tests PRESET [options of ctest]
  local preset=$1
  shift
  rm -f "build/$preset.tests.xml"
  ctest --preset "$preset" --output-junit "../$preset.tests.xml" "$@"
}

check_format() {
  find include kernels src tests -name '*.[ch]pp' -print0 | xargs -0 -n 64 -P 2 .deps/pytest-venv/bin/clang-format --dry-run --Werror &&
    find scripts tests spack_repo -name '*.py' -print0 | xargs -0 .deps/pytest-venv/bin/black --check --quiet
}

check_scripts() {
  if ! command -v shellcheck >/dev/null; then
    echo "no shellcheck on this machine: skipped"
    return
  fi
  local files
  mapfile -t files < <(find . -maxdepth 4 -type f \( -path './scripts/*.sh' -o -path './slurm/*.sh' -o -path './.ci/*' \))
  shellcheck -x "${files[@]}"
}

words=(tests)
[ "$cuda" = no ] || words+=(cuda)
scripts/install_deps.sh "${words[@]}"
# shellcheck source=scripts/environment.sh
. scripts/environment.sh
mkdir -p build

step "release: build" build release
if [ "$cuda" != no ]; then
  step "cuda-release: build" build cuda-release --target trireme tests_kernels
  step "cuda-release: without a driver" tests cuda-release
  step "cuda-release: on a GPU" tests gpu
fi
if [ "$asan" = yes ]; then
  step "sanitizers: build" build asan --target tests_unit tests_kernels
  step "sanitizers: tests" tests asan -j 2 -L '^(unit|kernels)$' -E '\.emulated$'
fi
step "arrows between the libraries" python3 scripts/check_layers.py
step "clang-format and black" check_format
step "shellcheck" check_scripts
step "release: tests" tests release -j 2

if [ ${#failed[@]} -gt 0 ]; then
  python3 scripts/failed_tests.py build/*.tests.xml # here, where a log that keeps only its end still has it
  printf 'test.sh: failed: %s\n' "${failed[@]}"
  exit 1
fi
echo "test.sh: all steps passed in $((SECONDS / 60)) min $((SECONDS % 60)) s"
