// SPDX-License-Identifier: Apache-2.0
#include "rank_reports.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/check.hpp"
#include "trireme/parallel/bounds.hpp"

namespace trireme::train {

namespace {

Spread spread_of(std::span<const RankReport> reports, double SensorValues::* value) {
  Spread spread;
  double sum = 0;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const double known = reports[rank].sensors.*value;
    if (std::isnan(known)) continue;
    if (spread.count == 0 || known < spread.min) {
      spread.min = known;
      spread.rank_of_min = static_cast<int>(rank);
    }
    if (spread.count == 0 || known > spread.max) {
      spread.max = known;
      spread.rank_of_max = static_cast<int>(rank);
    }
    sum += known;
    ++spread.count;
  }
  if (spread.count > 0) spread.mean = sum / spread.count;
  return spread;
}

MemoryInUse largest_memory(std::span<const RankReport> reports) {
  MemoryInUse largest;
  for (const RankReport& report : reports) {
    if (report.device_bytes >= 0)
      largest.device_bytes = std::max(largest.device_bytes.value_or(0), report.device_bytes);
    largest.host_bytes = std::max(largest.host_bytes, report.host_bytes);
  }
  return largest;
}

}  // namespace

RankFigures figures_of(std::span<const RankReport> reports) {
  const auto of = [&](double SensorValues::* value) { return spread_of(reports, value); };
  RankFigures figures{.memory = largest_memory(reports),
                      .cpu_percent = of(&SensorValues::cpu_percent),
                      .gpu_percent = of(&SensorValues::gpu_percent),
                      .gpu_celsius = of(&SensorValues::gpu_celsius),
                      .gpu_watts = of(&SensorValues::gpu_watts),
                      .gpu_megahertz = of(&SensorValues::gpu_megahertz),
                      .throttled = of(&SensorValues::gpu_throttled),
                      .gpu_joules = of(&SensorValues::gpu_joules),
                      .host_joules = of(&SensorValues::host_joules)};
  if (!reports.empty()) figures.rank_0 = reports[0].sensors;
  for (const RankReport& report : reports)
    figures.host_source = std::max(figures.host_source, report.sensors.host_source);
  return figures;
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
