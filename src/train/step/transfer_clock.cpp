// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/step/transfer_clock.hpp"

#include "trireme/base/check.hpp"

namespace trireme::train {

TransferClock::TransferClock(Device device, std::int64_t max_copies) {
  if (in_host_memory(device.kind)) return;
  stopwatches_.reserve(static_cast<std::size_t>(max_copies));
  for (std::int64_t copy = 0; copy < max_copies; ++copy) stopwatches_.emplace_back(device);
}

void TransferClock::start(const Stream& stream) {
  if (stopwatches_.empty()) return;
  TRIREME_EXPECT(num_copies_ < stopwatches_.size());
  stopwatches_[num_copies_].start(stream);
}

void TransferClock::stop(const Stream& stream) {
  if (stopwatches_.empty()) return;
  stopwatches_[num_copies_++].stop(stream);
}

double TransferClock::seconds() const {
  double seconds = 0;
  for (std::size_t copy = 0; copy < num_copies_; ++copy) seconds += stopwatches_[copy].seconds();
  return seconds;
}

std::vector<TransferClock::Copy> TransferClock::copies(const DeviceMoment& moment) const {
  std::vector<Copy> copies;
  for (std::size_t copy = 0; copy < num_copies_; ++copy) {
    const double begin = moment.start_of(stopwatches_[copy]);
    copies.push_back({begin, begin + stopwatches_[copy].seconds()});
  }
  return copies;
}

}  // namespace trireme::train
