// SPDX-License-Identifier: Apache-2.0
//
// The optimizer: one update per step on the flat buffers that this rank owns. Called by train once
// a step.
//
// begin_update() enqueues, all on the compute stream:
//   1. norms: sums of squares of the gradient, gathered over the data and model groups;
//   2. the step decision, which is also sent to the host;
//   3. update(): trust ratios (LARS, LAMB), then one fused pass over each window of the buffers;
//   4. the moving average of the weights, window by window.
// end_update() waits for the decision of the oldest update and stores its counters.

#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "trireme/ops/elementwise.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::optim {
namespace {

// running = 0.9 running + 0.1 batch (docs/reference/numerics.md)
constexpr float statistic_momentum = 0.1f;

/// Returns the names of the optimizer's slots; none for SGD without momentum.
std::vector<std::string> slot_names(const OptimizerOptions& options) {
  switch (options.kind) {
    case OptimizerKind::adamw:
    case OptimizerKind::lamb: return {"exp_avg", "exp_avg_sq"};
    case OptimizerKind::sgd:
      if (options.momentum == 0) return {};
      break;
    case OptimizerKind::lars: break;
  }
  return {"momentum"};
}

bool uses_trust_ratio(OptimizerKind kind) {
  return kind == OptimizerKind::lars || kind == OptimizerKind::lamb;
}

/// Returns the rates of all tensors before the first step. Later steps change only learning
/// rate, momentum and trust ratio. Frozen tensors have rates that nothing reads.
std::vector<ops::TensorRates> initial_rates(const OptimizerOptions& options,
                                            const parallel::ParameterList& list) {
  std::vector<ops::TensorRates> rates;
  for (const parallel::ParameterList::Entry& entry : list.entries()) {
    const bool statistic = entry.spec.role == parallel::Role::statistic;
    const bool decays = !statistic && (entry.spec.decay || options.decay_all);
    const ParameterGroup* group = group_of(options.groups, entry.spec);
    const double decay = decays ? options.weight_decay : 0;
    rates.push_back({.rate = statistic ? statistic_momentum : 0,
                     .weight_decay = static_cast<float>(
                         group != nullptr ? group->decay.value_or(decay) : decay),
                     .trust_ratio = 1,
                     .is_statistic = statistic ? 1 : 0,
                     .momentum = 0,
                     .rate_ratio = group != nullptr ? static_cast<float>(group->rate_ratio) : 1});
  }
  return rates;
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store,
                     const NormScope& scope, const parallel::StateMemory& state,
                     const std::optional<LossScaleOptions>& scaling, bool measures_tensors)
    : options_(options),
      store_(store),
      rates_(initial_rates(options, store.list())),
      report_(state.device.device()),
      gradient_squares_(store, scope, state) {
  // 1. Loss scale and trusted tensors.
  if (scaling) {
    scaling_ = {.growth = scaling->growth,
                .backoff = scaling->backoff,
                .min_scale = LossScaleOptions::min_scale,
                .max_scale = LossScaleOptions::max_scale,
                .growth_interval = scaling->interval};
    loss_scale_.scale = decision_.loss_scale = scaling->initial;
  }
  if (measures_tensors) tensor_norms_.emplace(store, scope, state);
  if (measures_tensors || uses_trust_ratio(options.kind))
    weight_squares_.emplace(store, scope, state);
  if (uses_trust_ratio(options.kind)) {
    const auto& entries = store.list().entries();
    for (std::size_t t = 0; t < entries.size(); ++t) {
      const parallel::ParameterSpec& spec = entries[t].spec;
      if (spec.role == parallel::Role::statistic || !spec.trust || spec.frozen) continue;
      trusted_.push_back({.tensor = static_cast<std::int32_t>(t),
                          .sum_index = static_cast<std::int32_t>(weight_squares_->index_of(t))});
    }
  }
  // 2. The chunks of each window, one window after the other. Frozen tensors are not updated.
  for (const parallel::ParameterShard::Window& window : store.owned().trained_windows()) {
    const std::size_t begin = windows_.empty() ? 0 : windows_.back().end;
    WindowChunks& place = windows_.emplace_back();
    place.begin = begin;
    place.end = begin + static_cast<std::size_t>(store.owned().chunk_count(window));
    for (std::size_t number = window.range_begin;
         store.flat_working().defined() && number < window.range_end; ++number) {
      const parallel::ParameterShard::TensorRange& range = store.owned().tensor_ranges()[number];
      place.working_bytes += range.elements * size_of(range.type);
    }
  }
  // 3. Tables for the kernels, then the slots and the moving average.
  chunks_ = {
      windows_.empty() ? 0 : windows_.back().end, state, [&](std::span<ops::FlatChunk> chunks) {
        for (std::size_t number = 0; number < windows_.size(); ++number)
          std::ranges::copy(store.owned().chunks(store.owned().trained_windows()[number]),
                            chunks.begin() + static_cast<std::ptrdiff_t>(windows_[number].begin));
      }};
  rate_table_ = {rates_, state};
  trusted_table_ = {trusted_, state};
  decision_table_ = {std::span(&decision_, 1), state};
  for (const std::string& name : slot_names(options)) {
    buffers_.emplace_back(store.owned(), state, parallel::WindowedBuffer::Range::trained);
    slots_.push_back({name, buffers_.back().flat()});
  }
  if (options.ema > 0) ema_.emplace(store.owned(), state);
}

std::vector<parallel::WindowedBuffer*> Optimizer::state_buffers() {
  std::vector<parallel::WindowedBuffer*> all;
  for (parallel::WindowedBuffer& buffer : buffers_) all.push_back(&buffer);
  if (ema_) all.push_back(&*ema_);
  return all;
}

void Optimizer::start_ema(ops::Context& context) {
  if (ema_) copy_to_ema(context, store_.owned().windows());
}

void Optimizer::start_frozen_ema(ops::Context& context) {
  const std::span<const parallel::ParameterShard::Window> windows = store_.owned().windows();
  if (ema_) copy_to_ema(context, windows.subspan(store_.owned().trained_windows().size()));
}

void Optimizer::copy_to_ema(ops::Context& context,
                            std::span<const parallel::ParameterShard::Window> windows) {
  for (const parallel::ParameterShard::Window& window : windows) {
    ops::copy(context, store_.master_buffer().open(context, window), ema_->open(context, window));
    ema_->close(context, window);
  }
}

void Optimizer::swap_ema(ops::Context& context) {
  for (const parallel::ParameterShard::Window& window : store_.owned().windows()) {
    ops::swap(context, store_.master_buffer().open(context, window), ema_->open(context, window));
    store_.master_buffer().close(context, window);
    ema_->close(context, window);
  }
}

void Optimizer::set_updates(std::int64_t updates) {
  if (updates == updates_) return;
  updates_ = updates;
  restore_decision();
}

void Optimizer::set_updates_before(std::map<std::string, std::int64_t> updates_before) {
  if (updates_before == updates_before_) return;
  updates_before_ = std::move(updates_before);
  const auto& entries = store_.list().entries();
  for (std::size_t t = 0; t < entries.size(); ++t) {
    const auto found = updates_before_.find(entries[t].spec.name);
    rates_[t].updates_before = found == updates_before_.end() ? 0 : found->second;
  }
  rate_table_.mark_changed();
}

void Optimizer::set_loss_scale(const LossScale& scale) {
  if (!scales_loss() || scale == loss_scale_) return;
  loss_scale_ = scale;
  restore_decision();
}

/// Makes the next decision continue from the host's number of updates and loss scale. Called after
/// a restart.
void Optimizer::restore_decision() {
  decision_.update_count = updates_;
  decision_.loss_scale = loss_scale_.scale;
  decision_.good_steps = loss_scale_.good_steps;
  decision_table_.mark_changed();
}

/// Returns the limit for elements of a gradient that still contains the loss scale. The scale is a
/// power of two, so clipping before or after the division gives the same bits.
float Optimizer::gradient_limit(const StepLoss& loss) const {
  if (options_.clip_value == 0) return ops::unlimited;
  const double limit = static_cast<double>(static_cast<float>(options_.clip_value)) * loss.scale;
  return static_cast<float>(
      std::min(limit, static_cast<double>(std::numeric_limits<float>::max())));
}

/// Enqueues the decision on the step, from the gradient's sums of squares and the loss, and its
/// copy to the host.
void Optimizer::decide_step(ops::Context& context, const StepRates& rates, const StepLoss& loss) {
  const Stream& stream = context.stream();
  const double momentum = rates.momentum.value_or(options_.momentum);
  TRIREME_EXPECT(options_.kind != OptimizerKind::sgd || momentum == 0 || !slots_.empty());
  ops::StepDecision* const decision = decision_table_.view(stream);
  ops::decide_step(context, {.gradient = gradient_squares_.parts(stream),
                             .loss_scale = loss.scale,
                             .loss_scaling = scaling_,
                             .loss_finite = loss.finite,
                             .loss = loss.sums,
                             .loss_limit = loss.limit,
                             .learning_rate = static_cast<float>(rates.learning_rate),
                             .momentum = static_cast<float>(momentum),
                             .clip_norm = options_.clip_norm,
                             .beta1 = options_.beta1,
                             .beta2 = options_.beta2,
                             .rates = rate_table_.view(stream),
                             .tensors = static_cast<std::int64_t>(rates_.size()),
                             .decision = decision});
  report_.enqueue(stream, decision);
}

/// Enqueues the sums of squares of the weights. Returns the arguments of the trust ratio kernels.
ops::TrustRatioArgs Optimizer::trust_arguments(ops::Context& context) {
  weight_squares_->measure(context, store_.master_buffer());
  const Stream& stream = context.stream();
  return {.weight = weight_squares_->parts(stream),
          .gradient = gradient_squares_.parts(stream),
          .tensors = trusted_table_.view(stream),
          .count = static_cast<std::int64_t>(trusted_.size()),
          .rates = rate_table_.view(stream),
          .decision = decision_table_.view(stream),
          .ratios = measures_ ? tensor_norms_->own_trust_ratios(stream) : nullptr};
}

/// Calls pass(state, tables) for each window. The pass may write the gradient and the buffers that
/// `writes` names; slots that it does not write are undefined. `gradient_limit`: that of the state.
/// Offloaded buffers are copied to the device before a pass and back after it. If weights are
/// written, the moving average follows in the same window.
template <class Pass>
void Optimizer::for_each_window(ops::Context& context, const PassWrites& writes,
                                float gradient_limit, Pass&& pass) {
  const Stream& stream = context.stream();
  const ops::TensorRates* rates = rate_table_.view(stream);
  const ops::StepDecision* decision = decision_table_.view(stream);
  for (std::size_t window_index = 0; window_index < windows_.size(); ++window_index) {
    const parallel::ParameterShard::Window& window = store_.owned().trained_windows()[window_index];
    const WindowChunks& place = windows_[window_index];
    const auto slot = [&](std::size_t slot_index) {
      return writes.slots && slot_index < buffers_.size()
                 ? buffers_[slot_index].open(context, window)
                 : Tensor{};
    };
    const ops::FlatState state{.weight = store_.master_buffer().open(context, window),
                               .gradient = store_.flat_gradient().rows(window.begin, window.end),
                               .slot1 = slot(0),
                               .slot2 = slot(1),
                               .working = store_.flat_working(),
                               .working_bytes = place.working_bytes,
                               .gradient_limit = gradient_limit};
    const UpdateTables tables{chunks_.at(stream, place.begin),
                              static_cast<std::int64_t>(place.end - place.begin), rates, decision};
    const bool measures = measures_ && writes.weights;
    if (measures) tensor_norms_->keep(context, window, state.weight);
    pass(state, tables);
    if (measures) tensor_norms_->measure(context, window, state.weight);
    if (writes.weights && ema_) {
      ops::update_ema(context, options_.ema, state.weight, ema_->open(context, window),
                      tables.chunks, tables.chunk_count, tables.decision);
      ema_->close(context, window);
    }
    if (writes.weights) store_.master_buffer().close(context, window);
    for (std::size_t slot_index = 0; writes.slots && slot_index < buffers_.size(); ++slot_index)
      buffers_[slot_index].close(context, window);
  }
}

void Optimizer::update(ops::Context& context, float gradient_limit) {
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2),
             epsilon = static_cast<float>(options_.epsilon);
  switch (options_.kind) {
    case OptimizerKind::sgd:
      for_each_window(context, {}, gradient_limit,
                      [&](const ops::FlatState& state, const UpdateTables& tables) {
                        ops::update_sgd(context, {options_.nesterov}, state, tables.chunks,
                                        tables.chunk_count, tables.rates, tables.decision);
                      });
      return;
    case OptimizerKind::lars:
      ops::lars_trust(context, options_.trust_coefficient, trust_arguments(context));
      for_each_window(context, {}, gradient_limit,
                      [&](const ops::FlatState& state, const UpdateTables& tables) {
                        ops::update_lars(context, state, tables.chunks, tables.chunk_count,
                                         tables.rates, tables.decision);
                      });
      return;
    case OptimizerKind::adamw:
      for_each_window(context, {}, gradient_limit,
                      [&](const ops::FlatState& state, const UpdateTables& tables) {
                        ops::update_adamw(context, {beta1, beta2, epsilon}, state, tables.chunks,
                                          tables.chunk_count, tables.rates, tables.decision);
                      });
      return;
    // LAMB needs two passes: the trust ratio depends on the norm of the whole direction.
    case OptimizerKind::lamb:
      for_each_window(context, {.weights = false}, gradient_limit,
                      [&](const ops::FlatState& state, const UpdateTables& tables) {
                        ops::lamb_direction(context, {beta1, beta2, epsilon}, state, tables.chunks,
                                            tables.chunk_count, tables.rates, tables.decision);
                      });
      gradient_squares_.measure(context, store_.flat_gradient());
      ops::lamb_trust(context, trust_arguments(context));
      for_each_window(context, {.slots = false}, ops::unlimited,
                      [&](const ops::FlatState& state, const UpdateTables& tables) {
                        ops::update_lamb(context, state, tables.chunks, tables.chunk_count,
                                         tables.rates, tables.decision);
                      });
      return;
  }
}

void Optimizer::begin_update(ops::Context& context, const StepRates& rates, const StepLoss& loss,
                             bool measures) {
  TRIREME_EXPECT(!measures || tensor_norms_);
  measures_ = measures;
  const float limit = gradient_limit(loss);
  gradient_squares_.measure(context, store_.flat_gradient(), limit);
  // LAMB measures its directions with the same sums.
  if (measures) tensor_norms_->copy(context, TensorNorms::Kind::gradient, gradient_squares_);
  decide_step(context, rates, loss);
  // LARS and LAMB measure the weights for their trust ratios.
  if (measures && !uses_trust_ratio(options_.kind))
    weight_squares_->measure(context, store_.master_buffer());
  update(context, limit);
  if (measures) {
    tensor_norms_->copy(context, TensorNorms::Kind::weight, *weight_squares_);
    tensor_norms_->finish(context);
  }
  store_.weights_changed();  // the host does not know yet if the step was applied
}

StepOutcome Optimizer::end_update() {
  ops::StepDecision decision{.update_count = updates_ + 1,
                             .loss_scale = loss_scale_.scale,
                             .good_steps = loss_scale_.good_steps};
  if (const ops::StepDecision* received = report_.wait()) decision = *received;
  updates_ = decision.update_count;
  loss_scale_ = {decision.loss_scale, decision.good_steps};
  return {decision.apply != 0, decision.gradient_norm, decision.overflow != 0,
          decision.nonfinite_tensor};
}

}  // namespace trireme::optim
