// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/train/step/replica.hpp"

namespace trireme::train {

/// Receives the communication of one rank in a rehearsed run, in the order of the program.
struct RunObserver {
  /// The run begins; its parts exist.
  std::function<void(Replica&)> begin;
  /// A part of the run begins, such as "step 1" or "the evaluation".
  std::function<void(std::string_view)> part;
  /// An op; may be empty.
  ops::OpObserver op;
  /// A call of the engine: a request, which does not block, or a wait.
  comm::Engine::Observer request;
  /// A call of a communicator, which blocks.
  std::function<void(const comm::Communicator& group, const comm::Communicator::Call&)> call;
};

/// The optional parts of a rehearsed run.
struct RehearsedParts {
  std::int64_t evaluation_rounds = 0;  ///< Micro-batches of each data rank; 0: no evaluation.
  bool compares_replicas = false;      ///< health.compare_replicas
};

/// Runs the parts of a training run that communicate, on the meta device as `world_rank` would:
///
///   step 1 | step 2 | reports | comparison | evaluation | checkpoint | step 3 | checkpoint | end
///
/// Steps are those of StepPipeline and the evaluation is evaluate(), so their calls are those of a
/// run. A run gathers the reports while a step runs (RankReports). Step 2 also measures what the
/// options allow (noise scale, tensors) and averages replicas with sync = "every n steps"; step 3
/// starts after the evaluation and carries a request to stop. A checkpoint makes only the calls
/// before its file is opened. `target` is the device that the run will use. Touches no device
/// memory and no file.
void rehearse_run(const ReplicaOptions& options, const parallel::MeshShape& shape, int world_rank,
                  DeviceKind target, const RehearsedParts& parts, const RunObserver& observer);

}  // namespace trireme::train
