#pragma once

#include <string>

#include "trireme/base/log.hpp"
#include "trireme/checkpoint/import_export.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/comm/environment.hpp"
#include "trireme/deck/deck.hpp"
#include "trireme/train/evaluation.hpp"

namespace trireme::train {

/// `--restart`: how a run folder that holds checkpoints is taken, or one that holds none.
struct RestartPolicy {
  enum class Kind : std::uint8_t {
    automatic,  ///< the newest valid checkpoint; fresh only in a folder that holds none at all
    required,   ///< never fresh
    none,       ///< fresh; checkpoints of an earlier run are moved aside
    path  ///< from a given file where the folder holds no checkpoint; else as automatic, so that
          ///< the same command can be submitted again
  };
  Kind kind = Kind::automatic;
  std::string path;
  bool weights_only = false;  ///< with a path: weights and running statistics only, at step 0
};

struct TrainRequest {
  deck::Deck deck;
  RestartPolicy restart;
};

/// Trains as the deck says until its stop condition (done), a wish to stop (stopped_early) or the
/// end of what health can repair (diverged). Collective over the world. Leaves exit.json in the run
/// folder. Errors found before the first step are thrown on all ranks alike; a later one on a
/// single rank ends the job at once through environment.abort. `engine`: made before Kokkos
/// (choose_drive).
ExitCode train(const TrainRequest& request, comm::Environment& environment, comm::Engine& engine,
               Log& log);

/// What `trireme evaluate` is asked for.
struct EvaluateRequest {
  deck::Deck deck;
  std::string checkpoint, split = "validation";  ///< "train", "validation" or "test"
  checkpoint::Weights weights = checkpoint::Weights::evaluated;
};

/// Metrics of a checkpoint on a split. Collective; any number of ranks.
Metrics evaluate_checkpoint(const EvaluateRequest& request, const comm::Environment& environment,
                            Log& log);

}  // namespace trireme::train
