// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "rank_sensors.hpp"
#include "trireme/comm/engine/engine.hpp"

namespace trireme::train {

/// One rank's figures of the steps since its last report.
struct RankReport {
  /// As BusyWindow has them; negative if the window had fewer than two steps.
  double busy_seconds = -1, step_seconds = -1;
  std::int64_t device_bytes = -1;  ///< As memory_in_use() of its device; -1: unknown.
  std::int64_t host_bytes = 0;     ///< As resident_bytes().
  SensorValues sensors = {};
};

/// The memory that the rank with the most of it uses.
struct MemoryInUse {
  std::optional<std::int64_t> device_bytes;  ///< None: no rank knows it, as on the CPU.
  std::int64_t host_bytes = 0;
};

/// The values of a sensor over the ranks that know it.
struct Spread {
  double min = 0, mean = 0, max = 0;
  int rank_of_min = 0, rank_of_max = 0;
  int count = 0;  ///< of ranks; 0: no rank knows it
};

/// The figures of all ranks for a row of metrics.
struct RankFigures {
  MemoryInUse memory = {};
  Spread cpu_percent = {}, gpu_percent = {}, gpu_celsius = {}, gpu_watts = {}, gpu_megahertz = {};
  Spread throttled = {};                     ///< 1 for a GPU whose clocks are lowered, else 0
  Spread gpu_joules = {}, host_joules = {};  ///< one value for each GPU, or host
  HostEnergy::Source host_source = HostEnergy::Source::none;
  SensorValues rank_0 = {};
};
RankFigures figures_of(std::span<const RankReport> reports);

/// Gathers the reports of all ranks while training goes on. Reports grow with the ranks, so they
/// are not part of the status exchange: they are posted in the step before a metrics row and read
/// one step later.
///
///   host   post(n)   | step n + 1 ...          wait() -> reports of n
///   MPI    [gather of host memory          ]
class RankReports {
 public:
  RankReports(const comm::Communicator& world, comm::Engine& engine);
  // The engine writes to a posted report.
  RankReports(const RankReports&) = delete;
  RankReports& operator=(const RankReports&) = delete;

  /// Starts to gather; the reports before have been read. Collective over the world.
  void post(const RankReport& mine);
  /// Returns whether posted reports have not been read.
  bool are_under_way() const { return are_under_way_; }
  /// Waits for the posted reports and returns them by world rank, until the next post().
  std::span<const RankReport> wait();

 private:
  comm::Communicator world_;
  comm::Engine& engine_;
  std::vector<RankReport> reports_;   ///< By world rank.
  std::vector<std::int64_t> bounds_;  ///< Of `reports_`, in bytes.
  comm::Engine::Request request_ = 0;
  bool are_under_way_ = false;
};

}  // namespace trireme::train
