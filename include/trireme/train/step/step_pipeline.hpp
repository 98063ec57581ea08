// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trireme/data/loader.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/monitor/trace.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/train/step/noise_scale.hpp"
#include "trireme/train/step/replica.hpp"
#include "trireme/train/step/status_exchange.hpp"
#include "trireme/train/step/transfer_clock.hpp"

namespace trireme::train {

/// Arguments of one step.
struct StepRequest {
  optim::StepRates rates;
  std::uint32_t stop_requests = flag_none;  ///< Requests of this rank: bits of StopFlag.
  /// sync = "every n steps": the replicas are averaged at the end of this step.
  bool averages = false;
  /// The gradients of the micro-batches are measured, for the noise scale. No bit of the training
  /// changes. Needs ReplicaOptions::noise_scale.
  bool measures_noise = false;
  /// The norms of every tensor are measured. No bit of the training changes. Needs
  /// ReplicaOptions::tensor_norms.
  bool measures_tensors = false;
  /// The gradient of a step with a larger loss is dropped.
  double loss_limit = std::numeric_limits<double>::infinity();
};

/// Seconds that the parts of one step took on this rank.
struct StepTimes {
  /// Copies of micro-batches to the device, concurrent with the other parts; 0 on the CPU.
  double transfer = 0;
  /// Work of the reader threads for the micro-batches, concurrent with the other parts.
  data::ReadTimes readers;
  double data = 0, forward = 0, backward = 0, comm_exposed = 0, optimizer = 0, total = 0;
  StepTimes& operator+=(const StepTimes& other);
};

/// The norms of one tensor in one update (optim::TensorNorm), as the metrics report them.
struct TensorRecord {
  std::string name;
  double weight_norm = 0, gradient_norm = 0;
  double update_ratio = 0;  ///< Norm of the change of the weights / weight_norm.
  std::optional<double> trust_ratio;
};

/// The outcome of one step, equal on all ranks except for the times.
struct StepResult {
  double loss = 0;  ///< Mean over the samples (tokens) of the global batch.
  double top1 = 0;  ///< Fraction of its samples (tokens) predicted correctly, in training mode.
  /// Norm of the applied gradient; 0 if there was none (delayed: the first step). Periodic: the
  /// root mean square over replicas.
  double grad_norm = 0;
  bool applied = true;    ///< False: the gradient was dropped (periodic: by at least one replica).
  bool overflow = false;  ///< It was dropped only because the loss scale was too large.
  /// False: no label of the step counts, as of maps in which all are missing; the loss is NaN.
  bool has_labels = true;
  double loss_scale = 1;  ///< Loss scale of that gradient (periodic: of this rank's).
  /// Only of a measured step that was applied.
  std::optional<GradientSquares> gradients;
  /// Not applied: the last tensor of the model whose gradient is not finite; "the running
  /// statistics" if only those are not; "" if all are finite.
  std::string nonfinite_tensor;
  /// Only of a step that measures tensors and has an update: all weights of the model. Periodic:
  /// of this rank's replica.
  std::vector<TensorRecord> tensors;
  std::uint32_t stop_requests = 0;
  StepTimes times;
  /// Seconds that this rank took without waiting for other ranks: on a device the time of its
  /// forward and backward, on the host that of data, forward and backward.
  double busy_seconds = 0;
};

/// Returns the outcome of a step in which each replica applied its own gradient (sync = "every n
/// steps"): the last tensor over all replicas, and the root mean square of the gradient norms.
/// `num_tensors`: those of the model.
optim::StepOutcome reduce_outcomes(const std::vector<optim::StepOutcome>& replicas,
                                   std::int32_t num_tensors);

/// Runs the training steps, two at a time where the device has memory of its own.
///
/// The host enqueues a step and reads its outcome one step later, so the device never waits for the
/// host. The decision whether a step is applied is made on the device.
///
///   host    begin(n)      begin(n + 1)  end() -> n    begin(n + 2)  end() -> n + 1
///   device  | forward, backward, update of n     | forward, backward, update of n + 1    | ...
///
/// Kernel launches inside begin() are recorded and replayed as CUDA graphs by comparison
/// (LaunchGraphs):
///
///   step                    n        n + 1    n + 2           n + 3           n + 4     n + 5
///   sections 0, 2, 4 ...    record            equal: graph                    replay
///   sections 1, 3, 5 ...             record                   equal: graph              replay
///
/// Each action of the schedule, and the update, is one section. Even and odd steps use separate
/// sections, because buffers with two copies alternate. A section whose launches differ is launched
/// call by call. Measured steps have other launches and no sections, so that the graphs of the
/// steps around them remain.
class StepPipeline {
 public:
  /// Returns the next micro-batch; stores the error of a reader as data::Loader::next() does.
  using BatchSource = std::function<const data::MicroBatch&(std::exception_ptr&)>;
  StepPipeline(Replica& replica, BatchSource batches);
  StepPipeline(Replica& replica, data::Loader& loader);

  /// Returns whether two steps may be in flight: the device has memory of its own, replicas agree
  /// on every step (sync = "step"), and there is no loss scale. Otherwise end() must follow each
  /// begin().
  bool overlap() const { return overlap_; }
  /// Returns the number of steps that were begun and not ended.
  int in_flight() const { return num_begun_ - num_ended_; }

  /// Enqueues one optimizer step:
  ///
  /// 1. Forward and backward in the order of this rank's schedule; gradients are reduced during
  ///    backward.
  /// 2. The status exchange.
  /// 3. One update; delayed: with the gradient of the previous step.
  ///
  /// `trace` records an event per action, the update, copies to the device, and exchanges and waits
  /// until the step has ended; null: none. Waits for the loader and for communication by MPI, but
  /// not for the device. Collective over the mesh.
  void begin(const StepRequest& request, monitor::Trace* trace = nullptr);
  /// Waits for the oldest step in flight and returns its outcome. Collective over the mesh.
  StepResult end();
  /// Returns the error of a reader that made this rank raise flag_unreadable; null: none.
  ///
  /// This rank then raises it in all later steps too, so that two steps in flight end alike. With
  /// sync = "step" no rank applies such a step. With the other kinds weights may have changed, so
  /// they must not be saved.
  const std::exception_ptr& reader_error() const { return reader_error_; }

 private:
  /// The host's record of a step in flight.
  struct Step {
    Step(Device device, TransferClock clock) : busy(device), transfers(std::move(clock)) {}
    StepRequest request;
    StepTimes times;
    double begin_seconds = 0;                        ///< monotonic_seconds() at begin().
    double lap_seconds = 0, lap_waited_seconds = 0;  ///< The clocks at the last lap().
    bool status_known = false, has_update = true;
    double scale = 1;  ///< loss scale of the gradient
    ops::StepTotals totals;
    double busy_seconds = 0;  ///< Of the host.
    Stopwatch busy;
    TransferClock transfers;
  };
  Step& step(int number) { return steps_[static_cast<std::size_t>(number) % steps_.size()]; }
  Step& start_step(const StepRequest& request);
  void run_schedule(Step& step);
  void update_weights(Step& step);
  std::optional<LaunchSection> launch_section(const Step& step, std::size_t number);
  double counted_part(const Step& step) const;
  double lap(Step& step, double& part);
  void wait_for_status(Step& step);
  void trace_optimizer(const char* name, double busy, double end);
  void trace_spans();
  std::optional<GradientSquares> gradients_of(const Step& step,
                                              const optim::StepOutcome& outcome) const;
  std::vector<TensorRecord> tensor_records(optim::Optimizer& optimizer, double loss_scale) const;
  std::string name_of(std::int32_t tensor) const;
  optim::StepOutcome exchange_outcomes(const optim::StepOutcome& mine);

  Replica& replica_;
  BatchSource batches_;
  bool overlap_;
  std::exception_ptr reader_error_;
  std::vector<Step> steps_;  ///< Two records, used in turn.
  int num_begun_ = 0, num_ended_ = 0;
  double last_end_ = 0;
  monitor::Trace* trace_ = nullptr;           ///< That of the step that was begun last.
  std::optional<DeviceMoment> trace_moment_;  ///< Before the first of the steps with a trace.
  std::vector<optim::StepOutcome> outcomes_;  ///< By data rank.
  std::vector<std::int64_t> outcome_bounds_;
};

}  // namespace trireme::train
