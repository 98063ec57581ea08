// SPDX-License-Identifier: Apache-2.0
#include "rank_reports.hpp"

#include <algorithm>

#include "trireme/base/check.hpp"
#include "trireme/parallel/bounds.hpp"

namespace trireme::train {

MemoryInUse largest_memory(std::span<const RankReport> reports) {
  MemoryInUse largest;
  for (const RankReport& report : reports) {
    if (report.device_bytes >= 0)
      largest.device_bytes = std::max(largest.device_bytes.value_or(0), report.device_bytes);
    largest.host_bytes = std::max(largest.host_bytes, report.host_bytes);
  }
  return largest;
}

RankReports::RankReports(const comm::Communicator& world, comm::Engine& engine)
    : world_(world),
      engine_(engine),
      reports_(static_cast<std::size_t>(world.size())),
      bounds_(parallel::equal_bounds(reports_.size(), sizeof(RankReport))) {}

void RankReports::post(const RankReport& mine) {
  TRIREME_EXPECT(!are_under_way_);
  reports_[static_cast<std::size_t>(world_.rank())] = mine;
  request_ = engine_.all_gather(world_, reinterpret_cast<std::byte*>(reports_.data()), bounds_,
                                "trireme/train/rank_reports");
  are_under_way_ = true;
}

std::span<const RankReport> RankReports::wait() {
  TRIREME_EXPECT(are_under_way_);
  engine_.wait(request_);
  are_under_way_ = false;
  return reports_;
}

}  // namespace trireme::train
