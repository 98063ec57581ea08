#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "trireme/train/options.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// Makes the faults of a deck happen at this rank ([debug] fault): each step of a fault once, also
/// where a roll-back comes by it again.
class FaultInjector {
 public:
  FaultInjector(const std::vector<Fault>& faults, int world_rank);
  /// This rank comes by a phase of a step, by any of its threads.
  void on_phase(const std::string& phase, std::int64_t step, Replica& replica);

 private:
  struct Armed {
    Fault fault;
    std::int64_t last_step = 0;  ///< up to this step
  };
  double inject(const std::string& phase, std::int64_t step, Replica& replica);
  std::mutex mutex_;
  std::vector<Armed> armed_;
  bool poisoned_ = false;  ///< the gradients of the step that is made now are
};

}  // namespace trireme::train
