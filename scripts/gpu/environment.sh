# SPDX-License-Identifier: Apache-2.0
#
# shellcheck shell=bash
# Sourced by scripts/gpu_session.sh. Adds the folders of CUDA's libraries to LD_LIBRARY_PATH:
# those of the toolkit and those of Python packages (PyTorch brings cuBLAS, cuDNN and NCCL). In a
# stage (scripts/stage_gpu.sh) it also sources stage.sh. GPU_PYTHON names the Python to ask
# (python3).
gpu_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
# The packages' namespace `nvidia` has folders like nvidia/cu13/lib, nvidia/cudnn/lib,
# nvidia/nccl/lib. They precede the toolkit's folders, so that Trireme and PyTorch use the same
# libraries.
gpu_package_libraries=$("${GPU_PYTHON:-python3}" -c '
import glob
try:
    import nvidia
    folders = (folder for path in nvidia.__path__ for folder in sorted(glob.glob(path + "/*/lib")))
    print(":".join(folders))
except ImportError:
    pass' 2>/dev/null || true)
gpu_other_libraries=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${CUDA_HOME:-/usr/local/cuda}/lib64
export LD_LIBRARY_PATH=${gpu_package_libraries:+$gpu_package_libraries:}$gpu_other_libraries
if [ -e "$gpu_root/stage.sh" ]; then
  # shellcheck source=/dev/null
  . "$gpu_root/stage.sh"
fi
unset gpu_package_libraries gpu_other_libraries
