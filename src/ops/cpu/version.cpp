// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <dnnl.hpp>

#include "trireme/ops/versions.hpp"

namespace trireme::ops {

std::string onednn_version() {
  const dnnl_version_t& version = *dnnl_version();
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

std::string onednn_instruction_set() {
  // By value: versions of oneDNN have different enumerators.
  const auto set = static_cast<unsigned>(dnnl_get_effective_cpu_isa());
  switch (set) {
    case 0x0: return "";
    case 0x1: return "SSE41";
    case 0x3: return "AVX";
    case 0x7: return "AVX2";
    case 0xf: return "AVX2_VNNI";
    case 0x1f: return "AVX2_VNNI_2";
    case 0x27: return "AVX512_CORE";
    case 0x67: return "AVX512_CORE_VNNI";
    case 0xe7: return "AVX512_CORE_BF16";
    case 0x1ef: return "AVX512_CORE_FP16";
    case 0xfef: return "AVX512_CORE_AMX";
    case 0x1fef: return "AVX512_CORE_AMX_FP16";
    default: return fmt::format("instruction set {:#x}", set);
  }
}

}  // namespace trireme::ops
