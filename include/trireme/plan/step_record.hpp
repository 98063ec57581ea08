// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::plan {

/// The kinds of calls of the communication engine.
using EngineKind = comm::Engine::Call::Kind;

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
  /// A period of the pipeline's steady state that is recorded once and stands for `times` equal
  /// ones. Numbers of requests and of micro-batches are those of a step in which it runs once.
  struct Repeat {
    std::size_t begin = 0, end = 0;  ///< Events.
    std::int64_t times = 1;
    std::int64_t requests = 0, micro_batches = 0;  ///< Of one period; micro-batches of each chunk.
    std::int64_t first = 0;                        ///< The first request of the steady state.
  };

  std::vector<ops::OpCall> ops;      ///< Different ops: by name and work.
  std::vector<std::int64_t> counts;  ///< How often each of `ops` runs.
  std::vector<Call> calls;
  std::vector<Event> events;
  std::int64_t requests = 0;  ///< Requests that the step submits.
  Repeat repeat = {};

  /// Returns how often event `index` runs.
  std::int64_t times_of(std::size_t index) const {
    return index >= repeat.begin && index < repeat.end ? repeat.times : 1;
  }
  /// Returns the number, in the step with all of its periods, of a request that a recorded wait
  /// names as `number`. `round`: the period that runs, from 0, or ran last.
  ///
  /// In the steady state, and behind it, a wait is for the request of some periods earlier. So its
  /// number advances with the periods, unless the request is older than the steady state.
  std::int64_t number_in_round(std::int64_t number, std::int64_t round) const {
    const std::int64_t left_out = (repeat.times - 1) * repeat.requests;
    if (number >= repeat.first) return number + round * repeat.requests;
    // A negative number counts back from the end of the step before. A request in front of its
    // steady state is `left_out` further away.
    if (number < 0 && number + requests - left_out < repeat.first) return number - left_out;
    return number;
  }

  /// Returns the operations and the bytes of memory traffic of all ops.
  double flops() const { return total(&ops::OpWork::flops); }
  double bytes() const { return total(&ops::OpWork::bytes); }

 private:
  double total(double ops::OpWork::* part) const;
};

/// Runs two steps on the meta device as `world_rank` would and returns the record of the second.
/// `target` is the device that the run will use. Touches no device memory.
///
/// `micro_batches`: with `different`, long steps have a Repeat. Its period is compared with the one
/// in front of it; if they differ, all micro-batches are recorded.
StepRecord record_step(
    const train::ReplicaOptions& options, const parallel::MeshShape& shape, int world_rank,
    DeviceKind target,
    train::RehearsedMicroBatches micro_batches = train::RehearsedMicroBatches::different);

}  // namespace trireme::plan
