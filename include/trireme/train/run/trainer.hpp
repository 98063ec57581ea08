// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/comm/engine/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/train/records/prediction_comparison.hpp"
#include "trireme/train/records/time_account.hpp"
#include "trireme/train/step/evaluation.hpp"

namespace trireme::train {

/// The option `--restart`: the choice between resuming and a fresh start.
struct RestartPolicy {
  enum class Kind : std::uint8_t {
    /// The newest valid checkpoint; a fresh start only if the folder holds no checkpoint file.
    automatic,
    required,  ///< The newest valid checkpoint; an error if there is none.
    none,      ///< A fresh start; checkpoints of an earlier run are moved aside.
    /// A given file if the folder holds no checkpoint, else as automatic. The same command can
    /// therefore be submitted again.
    path
  };
  Kind kind = Kind::automatic;
  std::string path;
  /// With a path: loads only weights and running statistics, and starts at step 0.
  bool weights_only = false;
  /// With weights_only: tensors whose names match one of these patterns (optim::matches) get
  /// initial values instead.
  std::vector<std::string> skip = {};
};

struct TrainRequest {
  deck::Deck deck;
  RestartPolicy restart;
  std::string command;  ///< The command line, for environment.json.
  /// With monitor.machine: called on world rank 0 when a start, or a row of batch.ramp, begins.
  Predictor predictor = {};
  /// Where the time of this start goes; null: it is not recorded. Outlives the training.
  const TimeAccount* account = nullptr;
};

/// Trains as the deck asks and returns the exit code: done (stop condition), stopped_early (signal,
/// STOP file, end of the job), diverged, or rank_lost (replicas differ).
///
/// Writes exit.json in the run folder. Collective over the world. `engine` must be created before
/// Kokkos is initialized (choose_drive). Errors before the first step are thrown on all ranks. A
/// later error on one rank alone ends the job through environment.abort().
ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log);

/// A checkpoint that is evaluated, and the samples.
struct EvaluatedCheckpoint {
  /// Names of the classes; their numbers if neither the data nor the checkpoint names them. Empty
  /// unless the answer is one class.
  std::vector<std::string> classes;
  std::int64_t samples = 0;             ///< Of the split.
  std::uint64_t checkpoint_digest = 0;  ///< checkpoint::combined_digest().
  AnswerExtents outputs;                ///< Of a sample.
};

/// The arguments of `trireme evaluate`.
struct EvaluateRequest {
  deck::Deck deck;
  std::string checkpoint, split = "validation";  ///< "train", "validation" or "test".
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
  RowSink sink = {};                     ///< As EvaluationPass::sink.
  ImageViews views = ImageViews::plain;  ///< As EvaluationPass::views.
  /// Called on all ranks before the first sample; empty: nothing is called.
  std::function<void(const EvaluatedCheckpoint&)> begin = {};
  std::function<void()> between_groups = {};  ///< As EvaluationPass::between_groups.
};

/// The metrics of a checkpoint.
struct CheckpointEvaluation : EvaluatedCheckpoint {
  Metrics metrics;
};

/// Evaluates a checkpoint on a split, on any number of ranks. Collective. Throws InputError on all
/// ranks for an unknown split, a missing dataset or a damaged checkpoint.
CheckpointEvaluation evaluate_checkpoint(const EvaluateRequest& request,
                                         const comm::Environment& environment, Log& log);

}  // namespace trireme::train
