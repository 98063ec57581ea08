#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::plan {

/// The events of one rank in a training step, in the order of the program. Each names an op or a
/// call of the communication engine.
///
/// The step is the second one of a run, so it also waits for what the step before it has started,
/// such as the gathers of updated weights. Requests are numbered from 0 in the order of submission;
/// requests of the step before have the numbers -requests to -1.
struct StepRecord {
  struct Event {
    enum class Kind : std::uint8_t {
      op,        ///< index: of `ops`
      call,      ///< index: of `calls`
      forward,   ///< A forward action of the pipeline's schedule begins. index: its micro-batch.
      backward,  ///< A backward action begins. index: its micro-batch.
      update     ///< The actions are done; gradients are finished and weights updated.
    };
    Kind kind;
    std::uint32_t index = 0;
  };
  /// A call of the engine. `request`: number of the request that it submits or waits for; numbers
  /// as above.
  struct Call : comm::Engine::Call {
    std::int64_t number = 0;
  };

  std::vector<ops::OpCall> ops;      ///< Different ops: by name and work.
  std::vector<std::int64_t> counts;  ///< How often each of `ops` runs.
  std::vector<Call> calls;
  std::vector<Event> events;
  std::int64_t requests = 0;  ///< Requests that the step submits.

  /// Returns the operations and the bytes of memory traffic of all ops.
  double flops() const { return total(&ops::OpWork::flops); }
  double bytes() const { return total(&ops::OpWork::bytes); }

 private:
  double total(double ops::OpWork::* part) const;
};

/// Runs two steps on the meta device as `world_rank` would and returns the record of the second.
/// `target` is the device that the run will use. Touches no device memory.
StepRecord record_step(const train::ReplicaOptions& options, const parallel::MeshShape& shape,
                       int world_rank, DeviceKind target);

}  // namespace trireme::plan
