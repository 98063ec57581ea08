#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/monitor/trace.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/replica.hpp"

namespace trireme::train {

/// What a rank wishes for; the wishes of all ranks are joined with the step's one small reduction, so all act together at the same step.
enum Wish : std::uint32_t {
  wish_nothing = 0,
  wish_stop = 1,        ///< a signal, a STOP file, the scheduler's end time: checkpoint and exit 75
  wish_finish = 2,      ///< run.stop is a time, and it is over
  wish_checkpoint = 4,  ///< checkpoint.every is a time, and it is over
  wish_saving = 8       ///< no wish: its thread still writes a part of the checkpoint under way
};

/// What a rank tells all others once a step.
struct StepMessage {
  Sums sums;
  std::uint64_t wishes = 0;
  double busy_seconds = 0;  ///< of this step up to here, without waiting for other ranks
};

/// Room for what all ranks tell, taken once.
struct StepMessages {
  explicit StepMessages(const parallel::Mesh& mesh);
  std::vector<StepMessage> all;
  std::vector<Sums> sums;
  std::vector<std::int64_t> bounds;
  std::vector<optim::StepOutcome> outcomes;  ///< by data rank
  std::vector<std::int64_t> outcome_bounds;
};

/// What is asked of a step.
struct StepRequest {
  double rate = 0;
  std::uint32_t wishes = wish_nothing;                          ///< this rank's
  bool averages = false;                                        ///< sync = "every n steps": the replicas are averaged at its end
  double loss_limit = std::numeric_limits<double>::infinity();  ///< the gradient of a step whose loss is above it is dropped
};

/// Seconds of the parts of one step on this rank.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, comm_exposed = 0, optimizer = 0, total = 0;
};

struct StepResult {
  double loss = 0;        ///< mean over the samples of the global batch
  double top1 = 0;        ///< share of its samples, in training mode
  double grad_norm = 0;   ///< of the gradient that was applied: 0 where none was to be (delayed: the first step); periodic: the replicas' root mean square
  bool applied = true;    ///< false: it was dropped (periodic: by some replica)
  bool overflow = false;  ///< it was dropped for no other reason than too large a loss scale
  double loss_scale = 1;  ///< of that gradient (periodic: of this rank's)
  std::uint32_t wishes = 0;
  StepTimes times;
};

/// One optimizer step: micro-batches forward and backward in the order of this rank's schedule, gradients reduced while backward goes on, sums and
/// wishes agreed on, one update: by this step's gradient, delayed by that of the step before. `trace`: gets an event an action; null: none. Collective
/// over the mesh.
StepResult train_step(Replica& replica, data::Loader& loader, const StepRequest& request, StepMessages& messages, monitor::Trace* trace = nullptr);

}  // namespace trireme::train
