// SPDX-License-Identifier: Apache-2.0
#include "trireme/device/profile_range.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme {

#if defined(TRIREME_ENABLE_CUDA)
ProfileRange::ProfileRange(const char* label) { nvtxRangePushA(label); }
ProfileRange::~ProfileRange() { nvtxRangePop(); }
#else
ProfileRange::ProfileRange(const char*) {}
ProfileRange::~ProfileRange() = default;
#endif

}  // namespace trireme
