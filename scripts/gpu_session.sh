#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# gpu_session.sh 1|2|3 [OPTIONS]: one part of the GPU acceptance, which checks and measures Trireme
# on a machine with a GPU. A part takes less than ten minutes.
#
#   1  libraries  loads the libraries that CUDA's libraries load later, and names missing ones
#      parity     losses of 50 steps of a small ResNet and a small GPT against those of the CPU
#      gradients  loss and gradients of one step of ResNet-50 and a GPT against those of the CPU
#      networks   the first steps of ResNet-50 and GPT-2 in full size, and the choice of algorithms
#      tests      the kernel tests on the device
#   2  ceilings   TFLOP/s and GB/s of the GPU, measured with PyTorch; writes a machine file
#      kernels    GB/s of the memory-bound ops against a copy
#      resnet50   Trireme and PyTorch training ResNet-50 side by side
#      gpt2       Trireme and PyTorch training GPT-2 side by side
#   3  sanitizer  compute-sanitizer over the tests of small tensors
#      layouts    2, 4 and 8 ranks on one GPU against one rank
#      again      every run that failed before, with CUDA_LAUNCH_BLOCKING=1 and its last 40 lines
#      profile    kernels of a training step, and the slowest ones, by ncu
#
# It runs in a stage (stage_gpu.sh) or in a source tree where everything is built
# (gpu_acceptance.sh builds it). Results are OUT/results.tar.gz and OUT/summary.md, complete
# whenever the script is killed. OUT is $OUT, otherwise ./gpu-results. Parts 2 and 3 use what
# earlier parts have found, also on another machine:
#   gpu_session.sh 2 --earlier results.tar.gz
#
# GPU_PYTHON names the Python that has PyTorch (python3). Options of scripts/gpu/acceptance.py
# follow: --earlier FILE, --out FOLDER, --seconds N (if the part gets less than 585), --patience
# FACTOR, --batch N, --rehearse, --device cpu;
# `sections NAME,...` in place of a number runs single sections.
set -euo pipefail
case ${1:-} in
  1 | 2 | 3) chosen=(--part "$1") ;;
  sections) chosen=(--sections "${2:?sections takes names with commas}") && shift ;;
  *)
    sed -n '4,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"
    [[ ${1:-} == -h || ${1:-} == --help ]] && exit 0
    exit 2
    ;;
esac
shift
out=${OUT:-$PWD/gpu-results}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# shellcheck source=scripts/gpu/environment.sh
. "$root/scripts/gpu/environment.sh"
if [ -e "$root/stage.sh" ]; then
  folders=(--bin "$root/bin" --reference "$root/reference")
else
  # shellcheck source=scripts/environment.sh
  . "$root/scripts/environment.sh"
  folders=(--bin "$root/build/cuda-release/bin" --reference "$root/build/gpu-reference")
fi
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
python=${GPU_PYTHON:-python3}
# Ten minutes less a margin for the start of the machine's shell and for the copies at the end.
exec "$python" "$root/scripts/gpu/acceptance.py" "${chosen[@]}" "${folders[@]}" --out "$out" \
  --python "$python" --seconds $((585 - SECONDS)) "$@"
