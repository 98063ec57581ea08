// SPDX-License-Identifier: Apache-2.0
//
// Detects the end of a step: the program marks its update by an NVTX range, and NVTX's headers load
// the library in NVTX_INJECTION64_PATH.

#include <cstring>

#include <nvtx3/nvToolsExt.h>

#include "record.hpp"
#include "state.hpp"

namespace stand_in {
namespace {

thread_local int depth = 0, depth_of_update = 0;

int NVTX_API push(const char* label) {
  ++depth;
  if (std::strcmp(label, "trireme/train/update") == 0) depth_of_update = depth;
  return depth - 1;
}

int NVTX_API pop() {
  if (depth-- == depth_of_update) {
    depth_of_update = 0;
    end_step();
  }
  return depth;
}

}  // namespace
}  // namespace stand_in

STAND_IN_API int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks == nullptr ||
      callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) == 0)
    return 0;
  *table[NVTX_CBID_CORE_RangePushA] = reinterpret_cast<NvtxFunctionPointer>(stand_in::push);
  *table[NVTX_CBID_CORE_RangePop] = reinterpret_cast<NvtxFunctionPointer>(stand_in::pop);
  return 1;
}
