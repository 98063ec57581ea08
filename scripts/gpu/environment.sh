# shellcheck shell=bash
# Sourced: CUDA's libraries where the machine has them, of its toolkit or as Python packages (cuBLAS, cuDNN and NCCL come with PyTorch), and, in a
# stage (scripts/stage_gpu.sh), what was staged. GPU_PYTHON names the Python to ask (python3).
gpu_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
# The packages' namespace `nvidia` has folders like nvidia/cu13/lib, nvidia/cudnn/lib, nvidia/nccl/lib. Before the toolkit's: so Trireme and PyTorch are
# compared with the same libraries.
gpu_package_libraries=$("${GPU_PYTHON:-python3}" -c '
import glob
try:
    import nvidia
    print(":".join(folder for path in nvidia.__path__ for folder in sorted(glob.glob(path + "/*/lib"))))
except ImportError:
    pass' 2>/dev/null || true)
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${gpu_package_libraries:+$gpu_package_libraries:}${CUDA_HOME:-/usr/local/cuda}/lib64
if [ -e "$gpu_root/stage.sh" ]; then
  # shellcheck source=/dev/null
  . "$gpu_root/stage.sh"
fi
unset gpu_package_libraries
