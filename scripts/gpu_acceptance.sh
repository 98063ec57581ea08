#!/usr/bin/env bash
# gpu_acceptance.sh [--sections NAME,...] [--out FOLDER] [OPTIONS]: checks and measures Trireme on a
# machine with a GPU.
#
#   libraries  loads the libraries that CUDA's libraries load later, and names missing ones
#   tests      the kernel tests on the device
#   parity     losses of 50 steps of a small ResNet and a small GPT against those of the CPU,
#              in float32 and bfloat16
#   gradients  loss and gradients of one step of ResNet-50 and a GPT against those of the CPU
#   sanitizer  compute-sanitizer's memcheck over the tests of small tensors
#   layouts    2, 4 and 8 ranks on one GPU against one rank
#   ceilings   TFLOP/s of a matrix product, GB/s of copies (PyTorch)
#   resnet50   Trireme and PyTorch training ResNet-50 side by side
#   gpt2       Trireme and PyTorch training GPT-2 side by side
#
# It runs in a stage (scripts/stage_gpu.sh) or in the source tree. In the source tree it first
# builds whatever is missing: the preset cuda-release with its kernel tests, and the preset release
# for the losses of the CPU.
#
# Results: a table at the end and one FOLDER/SECTION.json for each section. FOLDER is $OUT by
# default, otherwise build/gpu-acceptance (source tree) or ./gpu-acceptance (stage). Each section
# has a time limit. Without a GPU the script builds everything, says that nothing can be run, and
# exits 0.
#
# GPU_PYTHON names the Python that has PyTorch (python3). Further OPTIONS are passed to
# scripts/gpu/acceptance.py: --batch N, --patience FACTOR, --device cpu (the sections that need no
# GPU).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; exit 0 ;;
esac
say() { echo "gpu_acceptance: $*"; }
python=${GPU_PYTHON:-python3}

if [ -e stage.sh ]; then
  bin=$PWD/bin
  reference=$PWD/reference
  out=${OUT:-$PWD/gpu-acceptance}
else
  # shellcheck source=scripts/environment.sh
  . scripts/environment.sh
  bin=$PWD/build/cuda-release/bin
  reference=$PWD/build/gpu-reference
  out=${OUT:-$PWD/build/gpu-acceptance}
fi
# shellcheck source=scripts/gpu/environment.sh
. scripts/gpu/environment.sh

if [ ! -e stage.sh ]; then
  command -v nvcc >/dev/null || {
    say "no nvcc on this machine: nothing to build, nothing to run"
    exit 0
  }
  say "building (minutes the first time)"
  for preset in cuda-release release; do
    [ -e "build/$preset/build.ninja" ] || cmake --preset "$preset" >/dev/null
  done
  cmake --build --preset cuda-release --target trireme tests_kernels
fi

# Asks the driver itself for the number of devices (cuInit of libcuda.so.1), without its programs.
gpus=$("$python" -c '
import ctypes
count = ctypes.c_int(0)
try:
    driver = ctypes.CDLL("libcuda.so.1")
    if driver.cuInit(0) == 0:
        driver.cuDeviceGetCount(ctypes.byref(count))
except OSError:
    pass
print(count.value)')
if [ "$gpus" = 0 ] && [[ " $* " != *" --device cpu "* ]]; then
  say "no GPU on this machine: everything is built, nothing can be run"
  exit 0
fi

if [ ! -e stage.sh ] && [ ! -e "$reference/losses.json" ]; then
  cmake --build --preset release --target trireme
  say "losses of the CPU"
  "$python" scripts/gpu/parity.py record "$reference" --trireme build/release/bin/trireme
fi
exec "$python" scripts/gpu/acceptance.py --bin "$bin" --reference "$reference" --out "$out" \
  --python "$python" "$@"
