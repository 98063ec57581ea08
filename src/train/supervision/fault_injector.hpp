// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "trireme/deck/options.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Injects the faults of a deck's key debug.fault at this rank, to test recovery. Each fault
/// happens once per step of its range, also if a rollback repeats that step. Thread-safe.
class FaultInjector {
 public:
  FaultInjector(const std::vector<deck::Fault>& faults, int world_rank);
  /// Triggers the faults that are set for this phase and step. Called by any thread that enters a
  /// phase; may sleep or end the process.
  void on_phase(const std::string& phase, std::int64_t step, Replica& replica);

 private:
  struct Armed {
    deck::Fault fault;
    std::int64_t last_step = 0;  ///< The last step at which it happened.
  };
  double inject(const std::string& phase, std::int64_t step, Replica& replica);
  std::mutex mutex_;
  std::vector<Armed> armed_;
  /// The loss scale is NaN for the current step; the next "step" phase resets it.
  bool poisoned_ = false;
};

}  // namespace trireme::train
