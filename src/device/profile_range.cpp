// SPDX-License-Identifier: Apache-2.0
#include "trireme/device/profile_range.hpp"

#include <utility>

#include "trireme/base/clock.hpp"

#if defined(TRIREME_ENABLE_CUDA)
#include <nvtx3/nvToolsExt.h>
#endif

namespace trireme {
namespace {

ObserverList<const EndedRange&> observers;

}  // namespace

ProfileRange::ProfileRange(const char* label, const char* lane) : label_(label), lane_(lane) {
  if (lane_ != nullptr) begin_seconds_ = monotonic_seconds();
#if defined(TRIREME_ENABLE_CUDA)
  nvtxRangePushA(label);
#endif
}

ProfileRange::~ProfileRange() {
#if defined(TRIREME_ENABLE_CUDA)
  nvtxRangePop();
#endif
  if (lane_ != nullptr) observers.notify({label_, lane_, begin_seconds_, monotonic_seconds()});
}

RangeObserver::RangeObserver(std::function<void(const EndedRange&)> observer)
    : place_(observers.add(std::move(observer))) {}
RangeObserver::~RangeObserver() { observers.remove(place_); }

}  // namespace trireme
