#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_acceptance.sh [OPTIONS]: the GPU acceptance in a source tree: builds what is missing and runs
# the three parts of gpu_session.sh, which has the sections and the options.
#
# It builds the preset cuda-release with its kernel tests, and the preset release for the losses of
# the CPU. Results: build/gpu-results/results.tar.gz and summary.md ($OUT, if it is set). Without a
# GPU the script builds everything, says that nothing can be run, and exits 0.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  -h | --help) sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
say() { echo "gpu_acceptance: $*"; }
export OUT=${OUT:-$PWD/build/gpu-results}
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin

command -v nvcc >/dev/null || {
  say "no nvcc on this machine: nothing to build, nothing to run"
  exit 0
}
say "building (minutes the first time)"
for preset in cuda-release release; do
  [ -e "build/$preset/build.ninja" ] || cmake --preset "$preset" >/dev/null
done
cmake --build --preset cuda-release --target trireme tests_kernels

# Asks the driver itself for the number of devices (cuInit of libcuda.so.1), without its programs.
gpus=$(python3 -c '
import ctypes
count = ctypes.c_int(0)
try:
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
except OSError:
    pass
print(count.value)')
if [ "$gpus" = 0 ]; then
  say "no GPU on this machine: everything is built, nothing can be run"
  exit 0
fi
cmake --build --preset release --target trireme
recorded=build/gpu-reference/losses.json
program=build/release/bin/trireme
if [ ! "$program" -ot "$recorded" ] || [ ! scripts/gpu/parity.py -ot "$recorded" ]; then
  say "losses of the CPU"
  python3 scripts/gpu/parity.py build/gpu-reference --trireme "$program"
fi
failed=0
for part in 1 2 3; do
  earlier=()
  [ "$part" = 1 ] || earlier=(--earlier "$OUT/results.tar.gz")
  scripts/gpu_session.sh "$part" "${earlier[@]}" "$@" || failed=1
done
exit $failed
