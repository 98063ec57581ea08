// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "trireme/monitor/metrics.hpp"

namespace trireme::monitor {

/// The parts of the time of one start, in the order of their keys in rows of kind account.
enum class StartPart : std::uint8_t {
  launch,  ///< From the beginning of the process to MPI_Init.
  mpi,
  inputs,    ///< Deck and datasets.
  allocate,  ///< Plan and allocation.
  restore,
  first_step,
  train,
  evaluate,
  checkpoint,  ///< Waits of the steps for checkpoints.
  end
};
inline constexpr std::size_t start_parts = 10;
/// The seconds of each part.
using StartSeconds = std::array<double, start_parts>;
/// Returns "launch_s", the key of a part in rows of kind account.
const char* key_of(StartPart part);

/// Returns "launch 0.3 s, MPI 0.2 s, ...", without parts of less than a thousandth of the sum.
std::string describe_parts(const StartSeconds& seconds);

/// The time of a run, from its first start to the end of the last one. A run of several starts has
/// gaps between them, and makes steps again that a fault has lost.
struct Account {
  std::int64_t starts = 0;
  double begin = 0, end = 0;  ///< seconds since 1970-01-01 UTC
  /// By part of a start, all starts together; `train` is without `repeated`.
  StartSeconds parts{};
  double repeated = 0;  ///< steps that an earlier start, or this one before a rollback, had made
  double job = 0;       ///< from the start of a Slurm job to the first process of the run in it
  double hung = 0;      ///< from the last record of a start to the end that exit.json names
  double queue = 0;     ///< jobs waited for nodes; 0 without a batch system that says so
  double stopped = 0;   ///< no job of the run waited or ran, or a killed job's last seconds
  double node_seconds = 0;
  std::int64_t steps = 0, repeated_steps = 0;
  std::optional<double> mfu;  ///< mean over the steps
  /// The energy of the starts that know it.
  struct Energy {
    double joules = 0;
    std::int64_t starts = 0;
  };
  Energy gpu_energy, host_energy;
  /// The energy of all nodes of earlier Slurm jobs; `starts`: the number of these jobs.
  Energy slurm_energy;
  std::string host_energy_source, host_energy_scope;  ///< of the latest start, as in its rows

  /// A part of the time.
  struct Part {
    const char *key, *label;  ///< "launch_s", and "launch" for people
    double seconds;
  };
  /// Returns all parts, in the order in which a start meets them. Every second is in one of them.
  std::vector<Part> all_parts() const;
  /// Returns the sum of all parts: end - begin, unless starts overlap because a clock was wrong.
  double wall() const;
  /// Returns the part of the time in which nodes were there (scheduling goodput).
  double scheduling_goodput() const;
  /// Returns the part of the time with nodes in which steps were made for the first time (runtime
  /// goodput).
  double runtime_goodput() const;
};

/// Returns the account as `inspect --json` and reports print it.
nlohmann::ordered_json to_json(const Account& account);

/// The times of exit.json, in seconds since 1970-01-01 UTC. Whole seconds.
struct ExitTimes {
  double start = 0, end = 0;
};

/// Makes the account of a run from the rows of its metrics.jsonl. Constant memory.
class AccountReader {
 public:
  /// Returns the keys that a MetricsReader must read for add().
  static std::vector<std::string> keys();
  /// Takes the next row.
  void add(const MetricsReader& row);
  /// Returns the account; none without rows of kind account. `exit`: of exit.json, which
  /// counts if it is that of the last start.
  std::optional<Account> result(std::optional<ExitTimes> exit) const;

 private:
  /// The start that is being read.
  struct Start {
    double launched = 0, nodes = 1;
    double job_seconds = 0;  ///< as Account::job
    double overlap = 0;      ///< of its launch with the start before
    StartSeconds seconds{};
    /// `elapsed_s` when its process began, and of its latest row.
    double elapsed_at_launch = 0, last_elapsed = 0;
    bool ended = false;  ///< It has written its last row.
    std::optional<double> gpu_joules = {}, host_joules = {};
    std::int64_t steps = 0, repeated_steps = 0;  ///< all of them, and those made before
  };
  void add_account(const MetricsReader& row);
  void begin_start(const MetricsReader& row, double launched);
  /// The run has reached a step.
  void advance(std::int64_t step);
  /// Adds a start to an account. `exit` as in result().
  static void close(const Start& start, std::optional<ExitTimes> exit, Account& account);

  Account account_;
  std::optional<Start> start_;
  std::int64_t step_ = 0, max_step_ = 0;
  double mfu_seconds_ = 0, mfu_ = 0;
  std::string job_;  ///< of the latest start, and when it began
  std::optional<double> job_started_;
  bool has_checkpoint_ = false;  ///< since the run began
};

}  // namespace trireme::monitor
