// SPDX-License-Identifier: Apache-2.0
//
// Runs the training steps: begin() enqueues a step on the device, end() waits for the outcome of
// the oldest one. The training loop calls both; timelines are in step_pipeline.hpp.
//
// A step: forward and backward per action of the pipeline schedule, status exchange, end of the
// gradient reduction, optimizer update, gather of updated weights. All ranks take part in the same
// order.
#include "trireme/train/step/step_pipeline.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/parallel/bounds.hpp"

namespace trireme::train {
namespace {

bool may_overlap(const Replica& replica, const Device& device) {
  // With float16 a step needs the loss scale that the previous step determines.
  const ReplicaOptions& options = replica.options();
  return device.kind != DeviceKind::meta && !in_host_memory(device.kind) &&
         options.sync == parallel::SyncKind::step && !options.loss_scale;
}

/// Returns the labels of a step, by whose number gradients are divided, if some may not count, or
/// count differently; else 0.
double labels_per_step(const ReplicaOptions& options) {
  const bool differ = options.answer().is_map || !options.loss.class_weights.empty();
  return differ ? static_cast<double>(options.global * options.labels_per_sample()) : 0;
}

/// Returns whether the mean loss is finite and at most `limit`.
bool is_good(const ops::SampleSums& sums, double limit) {
  const double mean = sums.loss / sums.count;
  return std::isfinite(mean) && mean <= limit;
}

}  // namespace

StepTimes& StepTimes::operator+=(const StepTimes& other) {
  transfer += other.transfer;
  readers += other.readers;
  data += other.data;
  forward += other.forward;
  backward += other.backward;
  comm_exposed += other.comm_exposed;
  optimizer += other.optimizer;
  total += other.total;
  return *this;
}

optim::StepOutcome reduce_outcomes(const std::vector<optim::StepOutcome>& replicas,
                                   std::int32_t num_tensors) {
  optim::StepOutcome result;
  double squares = 0;
  bool bad = false, bad_statistics = false;
  for (const optim::StepOutcome& outcome : replicas) {
    result.applied = result.applied && outcome.applied;
    bad = bad || (!outcome.applied && !outcome.overflow);
    if (outcome.nonfinite_tensor == num_tensors)
      bad_statistics = true;
    else
      result.nonfinite_tensor = std::max(result.nonfinite_tensor, outcome.nonfinite_tensor);
    squares += outcome.grad_norm * outcome.grad_norm;
  }
  if (result.nonfinite_tensor < 0 && bad_statistics) result.nonfinite_tensor = num_tensors;
  result.overflow = !result.applied && !bad;
  result.grad_norm = std::sqrt(squares / static_cast<double>(replicas.size()));
  return result;
}

StepPipeline::StepPipeline(Replica& replica, BatchSource batches)
    : replica_(replica),
      batches_(std::move(batches)),
      overlap_(may_overlap(replica, replica.context().stream().device)),
      outcomes_(static_cast<std::size_t>(replica.mesh().shape.data)),
      outcome_bounds_(parallel::equal_bounds(outcomes_.size(), sizeof(optim::StepOutcome))) {
  for (int turn = 0; turn < 2; ++turn)
    steps_.emplace_back(replica.context().stream().device, replica.stage().make_transfer_clock());
}

StepPipeline::StepPipeline(Replica& replica, data::Loader& loader)
    : StepPipeline(replica, [&loader](std::exception_ptr& error) -> const data::MicroBatch& {
        return loader.next(error);
      }) {}

void StepPipeline::begin(const StepRequest& request, monitor::Trace* trace) {
  trace_ = trace;
  Step& step = start_step(request);
  run_schedule(step);
  update_weights(step);
}

/// Takes the free record of the two, starts the clocks, enters the phase "step" (watchdog, injected
/// faults) and seeds the gradients with the loss scale.
StepPipeline::Step& StepPipeline::start_step(const StepRequest& request) {
  TRIREME_EXPECT(in_flight() < (overlap_ ? 2 : 1));
  Step& step = this->step(num_begun_++);
  step.request = request;
  step.times = {};
  step.transfers.reset();
  step.status_known = false;
  step.has_update = true;
  step.begin_seconds = step.lap_seconds = monotonic_seconds();
  replica_.engine().record_spans(trace_ != nullptr);
  step.lap_waited_seconds = replica_.engine().waited_seconds();
  if (trace_ == nullptr)
    trace_moment_.reset();
  else if (!trace_moment_)
    trace_moment_.emplace(replica_.context().stream().device);
  enter_phase("step");
  replica_.begin_step(request.measures_noise);
  return step;
}

/// Runs forward and backward of each action, in the order of the schedule.
void StepPipeline::run_schedule(Step& step) {
  step.busy.start(replica_.context().stream());
  std::size_t number = 0;
  for (const parallel::PipelineAction& action : replica_.stage().schedule()) {
    const data::MicroBatch* batch =
        PipelineStage::takes_batch(action) ? &batches_(reader_error_) : nullptr;
    lap(step, step.times.data);
    if (batch != nullptr) step.times.readers += batch->times;
    const ProfileRange range(action.forward ? "trireme/train/forward" : "trireme/train/backward");
    std::optional<LaunchSection> launches = launch_section(step, number++);
    if (action.forward)
      replica_.stage().forward(action, batch, &step.transfers);
    else
      replica_.stage().backward(action);
    if (launches) launches->end();
    const double busy = lap(step, action.forward ? step.times.forward : step.times.backward);
    // An action waits for its input before it computes: the event covers the last `busy` seconds.
    if (trace_ != nullptr)
      trace_->record_event(monitor::Trace::step_lane, action.forward ? "forward" : "backward",
                           step.lap_seconds - busy, step.lap_seconds,
                           {{{"micro_batch", action.micro_batch}, {"chunk", action.chunk}}});
  }
  step.busy.stop(replica_.context().stream());
}

/// Exchanges the status, ends the reduction of gradients and enqueues the update.
void StepPipeline::update_weights(Step& step) {
  // 1. Exchange the status: loss sums and stop requests. Later device work may change the state
  //    that a background checkpoint copies, so it waits for these copies.
  const ProfileRange range("trireme/train/update");
  std::optional<LaunchSection> launches = launch_section(step, replica_.stage().schedule().size());
  step.busy_seconds = step.times.data + step.times.forward + step.times.backward;
  replica_.post_status(step.request.stop_requests | (reader_error_ ? flag_unreadable : flag_none));
  replica_.state_copy().wait_before_update();
  // 2. Finish the reduction of gradients. A delayed update uses the gradient of the previous step;
  //    the host must know the loss of the current step to mark its gradient for the next update.
  WeightUpdate& update = replica_.weight_update();
  const bool delayed = replica_.options().sync == parallel::SyncKind::delayed;
  if (delayed) wait_for_status(step);
  const parallel::GradientReducer::ReducedGradient gradient =
      update.finish_gradients(!delayed || is_good(step.totals.sums, step.request.loss_limit));
  lap(step, step.times.comm_exposed);
  // 3. Enqueue the update. On the device the loss sums decide whether it is applied; delayed
  //    updates use the decision that the host made one step earlier.
  step.has_update = gradient.exists;
  step.scale = gradient.scale;
  if (gradient.exists) {
    const optim::StepLoss loss =
        delayed ? optim::StepLoss{.finite = gradient.finite, .scale = gradient.scale}
                : optim::StepLoss{.sums = replica_.status_exchange().sums(),
                                  .limit = step.request.loss_limit,
                                  .scale = gradient.scale,
                                  .labels = labels_per_step(replica_.options())};
    update.begin_update(step.request.rates, loss, step.request.measures_tensors);
  }
  // 4. Start to gather updated weights, close the section, and hand requests and waits to the
  //    trace.
  update.start_gather();
  if (launches) launches->end();
  trace_optimizer("update", lap(step, step.times.optimizer), step.lap_seconds);
  trace_spans();
}

/// Opens section `number` of a step: an action of the schedule or, behind them, the update. Even
/// and odd steps have other sections: buffers with two copies alternate, so launches equal those of
/// the step before the previous one. A measured step has none.
std::optional<LaunchSection> StepPipeline::launch_section(const Step& step, std::size_t number) {
  if (step.request.measures_noise || step.request.measures_tensors) return std::nullopt;
  return std::optional<LaunchSection>(std::in_place, replica_.context().stream(),
                                      static_cast<std::size_t>(num_begun_) % 2 + 2 * number);
}

/// Adds the time since the last lap to `part`, and the part of it spent waiting for other ranks to
/// comm_exposed. Returns the remaining busy seconds.
double StepPipeline::lap(Step& step, double& part) {
  const double now = monotonic_seconds(), waited = replica_.engine().waited_seconds();
  const double waiting = waited - step.lap_waited_seconds, busy = now - step.lap_seconds - waiting;
  part += busy;
  step.times.comm_exposed += waiting;
  step.lap_seconds = now;
  step.lap_waited_seconds = waited;
  return busy;
}

/// Returns the part of the labels of a step that counts; 1 if none does.
double StepPipeline::counted_part(const Step& step) const {
  const double labels = labels_per_step(replica_.options()), count = step.totals.sums.count;
  return labels > 0 && count > 0 ? count / labels : 1;
}

StepResult StepPipeline::end() {
  TRIREME_EXPECT(in_flight() > 0);
  Step& step = this->step(num_ended_++);
  const double start = monotonic_seconds();
  // 1. Wait for the sums and stop requests of all ranks.
  if (!step.status_known) wait_for_status(step);
  const double status_time = monotonic_seconds();
  const double waited_before = replica_.engine().waited_seconds();
  // 2. Wait for the outcome of the update; average the replicas if this step asks for it.
  optim::StepOutcome outcome;
  StepResult result;
  WeightUpdate& update = replica_.weight_update();
  if (step.has_update) outcome = update.end_update();
  if (step.has_update && step.request.measures_tensors)
    result.tensors = tensor_records(update.optimizer(), step.scale * counted_part(step));
  if (update.is_periodic()) outcome = exchange_outcomes(outcome);
  if (step.request.averages) update.average_replicas();

  // 3. Compute the result from the totals.
  result.loss = step.totals.sums.loss / step.totals.sums.count;
  result.top1 = step.totals.sums.top1 / step.totals.sums.count;
  result.has_labels = step.totals.sums.count > 0;
  result.stop_requests = static_cast<std::uint32_t>(step.totals.stop_requests);
  result.grad_norm = outcome.grad_norm;
  result.applied = outcome.applied;
  result.overflow = outcome.overflow;
  result.nonfinite_tensor = name_of(outcome.nonfinite_tensor);
  result.loss_scale = step.scale;
  if (step.request.measures_noise) result.gradients = gradients_of(step, outcome);
  result.times = step.times;
  result.busy_seconds = overlap_ ? step.busy.seconds() : step.busy_seconds;
  result.times.transfer = step.transfers.seconds();
  const double now = monotonic_seconds();
  // The host waits here for work of the device that begin() enqueued. With sync "periodic" it waits
  // for other replicas, too.
  const double waited = replica_.engine().waited_seconds() - waited_before;
  result.times.backward += status_time - start;
  result.times.comm_exposed += waited;
  result.times.optimizer += now - status_time - waited;
  trace_optimizer("finish_update", now - status_time - waited, now);
  result.times.total = now - std::max(step.begin_seconds, last_end_);
  last_end_ = now;
  // 4. The trace has the exchanges of steps alone, not those of evaluations between them.
  if (trace_ != nullptr && trace_moment_)
    for (const TransferClock::Copy& copy : step.transfers.copies(*trace_moment_))
      trace_->record_event(monitor::Trace::copies_lane, "upload", copy.begin, copy.end);
  trace_spans();
  if (trace_ != nullptr && in_flight() == 0) replica_.engine().record_spans(false);
  return result;
}

/// Records work of the optimizer that took the last `busy` seconds before `end`, if there is a
/// trace.
void StepPipeline::trace_optimizer(const char* name, double busy, double end) {
  if (trace_ != nullptr)
    trace_->record_event(monitor::Trace::optimizer_lane, name, end - busy, end);
}

/// Hands the requests and waits since the last call to the trace, if there is one.
void StepPipeline::trace_spans() {
  if (trace_ == nullptr) return;
  for (const comm::Engine::Span& span : replica_.engine().take_spans()) {
    const comm::Engine::Purpose& purpose = span.purpose;
    const std::string_view name = purpose.label.substr(purpose.label.rfind('/') + 1);
    const monitor::Trace::Items items{
        {{purpose.first.name, purpose.first.number}, {purpose.second.name, purpose.second.number}}};
    if (span.is_wait)
      trace_->record_wait(name, span.begin, span.end, items);
    else
      trace_->record_exchange(span.group, name, span.begin, span.end, items);
  }
}

void StepPipeline::wait_for_status(Step& step) {
  step.totals = replica_.status_exchange().wait();
  step.status_known = true;
}

/// Returns the squared norms of a step that has ended.
std::optional<GradientSquares> StepPipeline::gradients_of(const Step& step,
                                                          const optim::StepOutcome& outcome) const {
  const double sum = step.totals.gradient_squares, loss_scale = step.scale;
  if (!outcome.applied || !std::isfinite(sum)) return std::nullopt;
  // Backward computes the gradient of the loss scale x the mean over the step, to which one of n
  // micro-batches contributes 1 / n of its own mean. So the mean over n of their squares is n^2 / n
  // times the sum.
  const double n = static_cast<double>(replica_.options().accumulation) *
                   static_cast<double>(replica_.mesh().shape.data);
  return GradientSquares{.small = n * sum / (loss_scale * loss_scale),
                         .large = outcome.grad_norm * outcome.grad_norm};
}

/// Returns the norms of the update that was ended last, whose gradient is divided by `divisor`.
std::vector<TensorRecord> StepPipeline::tensor_records(optim::Optimizer& optimizer,
                                                       double divisor) const {
  const std::vector<optim::TensorNorm> norms = optimizer.tensor_norms();
  const auto& entries = replica_.model().parameters().entries();
  std::vector<TensorRecord> records;
  for (std::size_t i = 0; i < norms.size(); ++i) {
    if (entries[i].spec.role == parallel::Role::statistic ||
        optim::is_frozen(replica_.options().optimizer.groups, entries[i].spec))
      continue;
    records.push_back({.name = entries[i].spec.name,
                       .weight_norm = norms[i].weight,
                       .gradient_norm = norms[i].gradient / divisor,
                       .update_ratio = norms[i].update / norms[i].weight,
                       .trust_ratio = norms[i].trust_ratio});
  }
  return records;
}

/// Returns the name of a tensor of the model (StepOutcome::nonfinite_tensor).
std::string StepPipeline::name_of(std::int32_t tensor) const {
  const auto& entries = replica_.model().parameters().entries();
  if (tensor < 0) return "";
  const auto index = static_cast<std::size_t>(tensor);
  return index < entries.size() ? entries[index].spec.name : "the running statistics";
}

/// sync periodic: combines the outcomes of all replicas, each of which applied its own gradient.
optim::StepOutcome StepPipeline::exchange_outcomes(const optim::StepOutcome& mine) {
  const comm::Communicator& data = replica_.mesh().data;
  outcomes_[static_cast<std::size_t>(data.rank())] = mine;
  comm::Engine& engine = replica_.engine();
  engine.wait(engine.all_gather(data, reinterpret_cast<std::byte*>(outcomes_.data()),
                                outcome_bounds_, "trireme/train/join_outcomes"));
  return reduce_outcomes(outcomes_,
                         static_cast<std::int32_t>(replica_.model().parameters().entries().size()));
}

}  // namespace trireme::train
