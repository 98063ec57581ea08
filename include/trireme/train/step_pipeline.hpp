#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/monitor/trace.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/replica.hpp"
#include "trireme/train/status_exchange.hpp"

namespace trireme::train {

/// What a rank wishes for; the wishes of all ranks are joined with the step's one small reduction,
/// so all act together at the same step.
enum StopFlag : std::uint32_t {
  flag_none = 0,
  flag_stop = 1,        ///< a signal, a STOP file, the scheduler's end time: checkpoint and exit 75
  flag_finish = 2,      ///< run.stop is a time, and it is over
  flag_checkpoint = 4,  ///< checkpoint.every is a time, and it is over
  flag_saving = 8       ///< no wish: its thread still writes a part of the checkpoint under way
};

/// What is asked of a step.
struct StepRequest {
  double rate = 0;
  std::uint32_t stop_requests = flag_none;  ///< this rank's
  bool averages = false;  ///< sync = "every n steps": the replicas are averaged at its end
  double loss_limit = std::numeric_limits<double>::infinity();  ///< the gradient of a step whose
                                                                ///< loss is above it is dropped
};

/// Seconds of the parts of one step on this rank.
struct StepTimes {
  double data = 0, forward = 0, backward = 0, comm_exposed = 0, optimizer = 0, total = 0;
};

struct StepResult {
  double loss = 0;       ///< mean over the samples of the global batch
  double top1 = 0;       ///< share of its samples, in training mode
  double grad_norm = 0;  ///< of the gradient that was applied: 0 where none was to be (delayed: the
                         ///< first step); periodic: the replicas' root mean square
  bool applied = true;   ///< false: it was dropped (periodic: by some replica)
  bool overflow = false;  ///< it was dropped for no other reason than too large a loss scale
  double loss_scale = 1;  ///< of that gradient (periodic: of this rank's)
  std::uint32_t stop_requests = 0;
  StepTimes times;
};

/// The steps of a run, one after the other. Where the data lie on a device, the host gives it a
/// step's work and hears a step later what has come of the one before: so the device never waits
/// for the host. Whether a step is applied is judged where the data are.
class StepPipeline {
 public:
  StepPipeline(Replica& replica, data::Loader& loader);

  /// Whether two steps may be under way: on a device of its own memory, where replicas agree on
  /// every step and apply its own gradient, which no loss scale is in. Else a step is ended before
  /// the next is begun.
  bool overlap() const { return overlap_; }
  /// Begun and not ended.
  int in_flight() const { return num_begun_ - num_ended_; }

  /// One optimizer step: micro-batches forward and backward in the order of this rank's schedule,
  /// gradients reduced while backward goes on, sums and wishes agreed on, one update: by this
  /// step's gradient, delayed by that of the step before. `trace`: gets an event an action; null:
  /// none. Collective over the mesh.
  void begin(const StepRequest& request, monitor::Trace* trace = nullptr);
  /// What the step begun first of those under way has come to, for which the host waits. Collective
  /// over the mesh.
  StepResult end();
  /// What each rank told in the step ended last, by world rank.
  const std::vector<ops::StepStatus>& statuses() const { return statuses_; }

 private:
  /// What the host knows of a step under way.
  struct Step {
    explicit Step(Device device) : busy(device) {}
    StepRequest request;
    StepTimes times;
    double begin_seconds = 0;  ///< monotonic seconds
    bool status_known = false, has_update = true;
    double scale = 1;  ///< loss scale of the gradient
    StatusExchange::Totals totals;
    Stopwatch busy;
  };
  Step& step(int number) { return steps_[static_cast<std::size_t>(number) % steps_.size()]; }
  void wait_for_status(Step& step);
  optim::StepOutcome reduce_outcomes(const optim::StepOutcome& mine);
  void average_replicas();

  Replica& replica_;
  data::Loader& loader_;
  bool overlap_;
  std::vector<Step> steps_;  ///< two, by turns
  int num_begun_ = 0, num_ended_ = 0;
  double busy_seconds_ = 0, last_end_ = 0;
  std::vector<ops::StepStatus> statuses_;
  std::vector<optim::StepOutcome> outcomes_;  ///< by data rank
  std::vector<std::int64_t> outcome_bounds_;
};

}  // namespace trireme::train
