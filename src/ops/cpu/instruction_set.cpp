// SPDX-License-Identifier: Apache-2.0
//
// Compiled with the options of the CPU kernels, so the compiler's macros say what they may use.
#include <string>

#include "trireme/ops/versions.hpp"

namespace trireme::ops {

std::string kernel_instruction_set() {
  std::string text;
  const auto add = [&text](const char* name) {
    text += (text.empty() ? "" : ", ") + std::string(name);
  };
#if defined(__AVX2__)
  add("AVX2");
#endif
#if defined(__AVX512F__)
  add("AVX-512");
#endif
#if defined(__AVX512BF16__)
  add("AVX-512 BF16");
#endif
#if defined(__AVX512FP16__)
  add("AVX-512 FP16");
#endif
#if defined(__AMX_TILE__)
  add("AMX");
#endif
#if defined(__ARM_NEON)
  add("NEON");
#endif
#if defined(__ARM_FEATURE_SVE)
  add("SVE");
#endif
  if (text.empty()) text = "the processor's basic set";
  const std::string option = TRIREME_CPU_ARCH;
  return text + (option.empty() ? " (compiler's default)" : " (-march=" + option + ")");
}

}  // namespace trireme::ops
