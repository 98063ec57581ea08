// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace trireme::ops {

/// Returns the version of the oneDNN library that runs, such as "3.7.1".
std::string onednn_version();

/// Returns the instruction set that oneDNN uses on this processor, by its name in oneDNN's variable
/// ONEDNN_MAX_CPU_ISA, such as "AVX512_CORE_AMX"; empty if oneDNN names none (no x86 processor).
std::string onednn_instruction_set();

/// Returns the vector extensions for which the CPU kernels were compiled, and the option of the
/// compiler, such as "AVX2, AVX-512, AMX (-march=native)".
std::string kernel_instruction_set();

/// Returns the version of the cuDNN library that runs, such as "9.19.0"; empty in a build without
/// CUDA.
std::string cudnn_version();

}  // namespace trireme::ops
