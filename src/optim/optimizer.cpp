// SPDX-License-Identifier: Apache-2.0
//
// The optimizer: one update per step on the flat buffers that this rank owns. Called by train once
// a step.
//
// begin_update() enqueues, all on the compute stream:
//   1. norms: sums of squares of the gradient, gathered over the data and model groups;
//   2. the step decision, which is also sent to the host;
//   3. trust ratios, for rules that have them; before them a pass over the buffers for rules that
//      make directions, and the directions of whole matrices;
//   4. one fused pass over each window of the buffers, in which the moving average of the weights
//      follows.
// end_update() waits for the decision of the oldest update and stores its counters.

#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::optim {
namespace {

// running = 0.9 running + 0.1 batch (docs/reference/numerics.md)
constexpr float statistic_momentum = 0.1f;

bool makes_directions(const UpdateRule* rule) { return rule->direction.kernel != nullptr; }

ops::RuleNumbers numbers_of(const RuleOptions& options) {
  return {.nesterov = options.nesterov,
          .beta1 = static_cast<float>(options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .epsilon = static_cast<float>(options.epsilon)};
}

/// Returns the factor of the rate of a matrix under a rule that has one, else 1.
float scale_of(const OptimizerOptions& options, const parallel::ParameterSpec& spec) {
  const UpdateRule& rule = rule_of(options, spec);
  if (rule.scale_of_matrix == nullptr) return 1;
  std::int64_t out = spec.rows(), in = spec.row_elements();
  if (spec.form == parallel::MatrixForm::in_out) std::swap(out, in);
  return static_cast<float>(rule.scale_of_matrix(options, out, in));
}

/// Returns the rates of a tensor before the first step. Later steps change only learning rate,
/// momentum, bias corrections and trust ratio. Frozen tensors have rates that nothing reads.
ops::TensorRates initial_rates(const OptimizerOptions& options, const parallel::ParameterSpec& spec,
                               std::size_t rule) {
  const bool statistic = spec.role == parallel::Role::statistic;
  const bool decays = !statistic && (spec.decay || options.decay_all);
  const ParameterGroup* group = group_of(options.groups, spec);
  const double decay = decays ? options.weight_decay : 0;
  return {
      .rate = statistic ? statistic_momentum : 0,
      .weight_decay = static_cast<float>(group != nullptr ? group->decay.value_or(decay) : decay),
      .trust_ratio = statistic ? 1 : scale_of(options, spec),
      .rule = statistic ? kernels::statistic_rule : static_cast<std::int32_t>(rule),
      .momentum = 0,
      .rate_ratio = group != nullptr ? static_cast<float>(group->rate_ratio) : 1};
}

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store,
                     const NormScope& scope, const parallel::StateMemory& state,
                     const std::optional<LossScaleOptions>& scaling, bool measures_tensors)
    : options_(options),
      numbers_(numbers_of(options)),
      store_(store),
      report_(state.device.device()),
      gradient_squares_(store, scope, state),
      matrix_directions_(options, store, scope) {
  // 1. Loss scale and rules.
  if (scaling) {
    scaling_ = {.growth = scaling->growth,
                .backoff = scaling->backoff,
                .min_scale = LossScaleOptions::min_scale,
                .max_scale = LossScaleOptions::max_scale,
                .growth_interval = scaling->interval};
    loss_scale_.scale = decision_.loss_scale = scaling->initial;
  }
  find_rules();
  const auto& entries = store.list().entries();
  for (const parallel::ParameterList::Entry& entry : entries)
    rates_.push_back(initial_rates(options, entry.spec, rule_index(entry.spec)));
  // 2. The norms that are measured, and the tensors that have a trust ratio.
  if (measures_tensors) tensor_norms_.emplace(store, scope, state);
  if (measures_tensors || has_trust_ratios()) weight_squares_.emplace(store, scope, state);
  for (std::size_t t = 0; t < entries.size(); ++t) {
    const parallel::ParameterSpec& spec = entries[t].spec;
    if (spec.role == parallel::Role::statistic || !spec.trust || spec.frozen) continue;
    RuleUse& use = rules_[rule_index(spec)];
    const ParameterGroup* group = group_of(options.groups, spec);
    if (use.rule->trust == nullptr || (group && !group->trust)) continue;
    constexpr double unlimited = std::numeric_limits<double>::infinity();
    use.trusted.push_back({.tensor = static_cast<std::int32_t>(t),
                           .sum_index = static_cast<std::int32_t>(weight_squares_->index_of(t)),
                           .max = group ? group->trust_max.value_or(unlimited) : unlimited});
  }
  // 3. Tables for the kernels, then the slots and the moving average.
  make_chunks(state);
  rate_table_ = {rates_, state};
  for (RuleUse& use : rules_) use.trusted_table = {use.trusted, state};
  decision_table_ = {std::span(&decision_, 1), state};
  std::size_t slots = 0;
  for (const RuleUse& use : rules_) slots = std::max(slots, slot_count(*use.rule));
  for (std::size_t slot = 0; slot < slots; ++slot)
    buffers_.emplace_back(store.owned(), state, parallel::WindowedBuffer::Range::trained);
  if (options.ema > 0) ema_.emplace(store.owned(), state);
}

void Optimizer::find_rules() {
  for (const UpdateRule* rule : rules_of(options_)) rules_.push_back({rule, {}, {}});
  ensure(rules_.size() <= kernels::max_rules, "{} different rules in one optimizer; at most {}",
         rules_.size(), kernels::max_rules);
}

std::size_t Optimizer::rule_index(const parallel::ParameterSpec& spec) const {
  const auto found = std::ranges::find(rules_, &rule_of(options_, spec), &RuleUse::rule);
  TRIREME_EXPECT(found != rules_.end());
  return static_cast<std::size_t>(found - rules_.begin());
}

std::size_t Optimizer::slot_count(const UpdateRule& rule) const {
  if (rule.slots_are_momentum && options_.momentum == 0) return 0;
  return static_cast<std::size_t>(
      std::ranges::count_if(rule.slots, [](const char* name) { return name != nullptr; }));
}

bool Optimizer::has_trust_ratios() const {
  return has_trust_ratios(false) || has_trust_ratios(true);
}

bool Optimizer::has_trust_ratios(bool of_directions) const {
  return std::ranges::any_of(rules_, [&](const RuleUse& use) {
    return use.rule->trust != nullptr && makes_directions(use.rule) == of_directions;
  });
}

/// Lists the chunks of all windows; within a window those of one rule after the other. Running
/// statistics are with the first rule. Frozen tensors are not updated.
void Optimizer::make_chunks(const parallel::StateMemory& state) {
  const parallel::ParameterShard& shard = store_.owned();
  const auto rule_of = [&](std::int32_t tensor) {
    return static_cast<std::size_t>(
        std::max<std::int32_t>(0, rates_[static_cast<std::size_t>(tensor)].rule));
  };
  // 1. The number of chunks of each rule, and what they cover.
  std::size_t chunks = 0;
  for (const parallel::ParameterShard::Window& window : shard.trained_windows()) {
    const std::size_t first = windows_.size();
    windows_.resize(first + rules_.size());
    windows_[first].elements = window.elements();
    for (std::size_t number = window.range_begin; number < window.range_end; ++number) {
      const parallel::ParameterShard::TensorRange& range = shard.tensor_ranges()[number];
      WindowChunks& place = windows_[first + rule_of(range.tensor)];
      place.end += static_cast<std::size_t>(parallel::ParameterShard::chunk_count(range));
      if (store_.flat_working().defined())
        place.working_bytes += range.elements * size_of(range.type);
      windows_[first].elements -= range.elements;
      place.elements += range.elements;
    }
    for (WindowChunks& place : std::span(windows_).subspan(first)) {
      place.begin = chunks;
      place.end += chunks;
      chunks = place.end;
    }
  }
  // 2. The chunks.
  chunks_ = {chunks, state, [&](std::span<ops::FlatChunk> all) {
               auto next = all.begin();
               for (const parallel::ParameterShard::Window& window : shard.trained_windows()) {
                 std::vector<ops::FlatChunk> of_window = shard.chunks(window);
                 if (rules_.size() > 1)
                   std::ranges::stable_sort(of_window, {}, [&](const ops::FlatChunk& chunk) {
                     return rule_of(chunk.tensor);
                   });
                 next = std::ranges::copy(of_window, next).out;
               }
             }};
}

void Optimizer::add_state(parallel::StateList& list) const {
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    const UpdateRule& used = *rules_[rule].rule;
    for (std::size_t slot = 0; slot < slot_count(used); ++slot)
      list.push_back({.group = fmt::format("optimizer/{}", used.slots[slot]),
                      .flat = buffers_[slot].flat(),
                      .has = [this, rule](const auto& spec) { return rule_index(spec) == rule; },
                      .counts_updates = used.corrects_bias});
  }
  if (ema_)
    list.push_back(
        {.group = "ema", .flat = ema_->flat(), .tensors = parallel::StateEntry::Tensors::all});
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
  ops::DecideStepArgs args{.gradient = gradient_squares_.parts(stream),
                           .loss_scale = loss.scale,
                           .loss_scaling = scaling_,
                           .loss_finite = loss.finite,
                           .loss = loss.sums,
                           .loss_limit = loss.limit,
                           .labels = loss.labels,
                           .learning_rate = static_cast<float>(rates.learning_rate),
                           .clip_norm = options_.clip_norm,
                           .rates = rate_table_.view(stream),
                           .tensors = static_cast<std::int64_t>(rates_.size()),
                           .decision = decision_table_.view(stream)};
  const double momentum = rates.momentum.value_or(options_.momentum);
  for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
    TRIREME_EXPECT(!rules_[rule].rule->slots_are_momentum || momentum == 0 ||
                   slot_count(*rules_[rule].rule) > 0);
    args.rules[rule] = {static_cast<float>(momentum), options_.beta1, options_.beta2};
  }
  ops::decide_step(context, args);
  report_.enqueue(stream, args.decision);
}

/// Enqueues the trust ratios of the rules that compute them from gradients, or from directions.
void Optimizer::set_trust_ratios(ops::Context& context, bool from_directions) {
  const Stream& stream = context.stream();
  for (RuleUse& use : rules_) {
    if (use.rule->trust == nullptr || makes_directions(use.rule) != from_directions) continue;
    use.rule->trust(context, options_,
                    {.weight = weight_squares_->parts(stream),
                     .gradient = gradient_squares_.parts(stream),
                     .tensors = use.trusted_table.view(stream),
                     .count = static_cast<std::int64_t>(use.trusted.size()),
                     .rates = rate_table_.view(stream),
                     .decision = decision_table_.view(stream),
                     .ratios = measures_ ? tensor_norms_->own_trust_ratios(stream) : nullptr});
  }
}

/// Enqueues one pass of each rule over each window. Offloaded buffers are copied to the device
/// before a window and back after it. If weights are written, the moving average follows in the
/// same window.
void Optimizer::run_passes(ops::Context& context, ops::UpdatePass UpdateRule::* pass,
                           float gradient_limit) {
  const Stream& stream = context.stream();
  const bool writes_weights = pass == &UpdateRule::step;
  std::size_t slots = 0;
  for (const RuleUse& use : rules_)
    if ((use.rule->*pass).slots > 0) slots = std::max(slots, slot_count(*use.rule));
  const auto trained = store_.owned().trained_windows();
  for (std::size_t index = 0; index < trained.size(); ++index) {
    const parallel::ParameterShard::Window& window = trained[index];
    const std::span<const WindowChunks> places =
        std::span(windows_).subspan(index * rules_.size(), rules_.size());
    ops::WindowState state{.weight = store_.master_buffer().open(context, window),
                           .gradient = store_.flat_gradient().rows(window.begin, window.end),
                           .working = store_.flat_working(),
                           .gradient_limit = gradient_limit,
                           .rates = rate_table_.view(stream),
                           .decision = decision_table_.view(stream)};
    const auto cover = [&](std::size_t begin, std::size_t end, std::int64_t elements) {
      state.chunks = chunks_.at(stream, begin);
      state.chunk_count = static_cast<std::int64_t>(end - begin);
      state.elements = elements;
    };
    Tensor opened[kernels::max_slots];
    for (std::size_t slot = 0; slot < slots; ++slot)
      opened[slot] = buffers_[slot].open(context, window);
    const bool measures = measures_ && writes_weights;
    if (measures) tensor_norms_->keep(context, window, state.weight);
    for (std::size_t rule = 0; rule < rules_.size(); ++rule) {
      const RuleUse& use = rules_[rule];
      const ops::UpdatePass& of_rule = use.rule->*pass;
      if (of_rule.kernel == nullptr || (rule > 0 && places[rule].elements == 0)) continue;
      cover(places[rule].begin, places[rule].end, places[rule].elements);
      state.working_bytes = places[rule].working_bytes;
      std::ranges::fill(state.slots, Tensor{});
      std::copy_n(opened, std::min(slots, slot_count(*use.rule)), state.slots);
      ops::update(context, of_rule, numbers_, state);
    }
    if (measures) tensor_norms_->measure(context, window, state.weight);
    if (writes_weights && ema_) {
      cover(places.front().begin, places.back().end, window.elements());
      ops::update_ema(context, options_.ema, state, ema_->open(context, window));
      ema_->close(context, window);
    }
    if (writes_weights) store_.master_buffer().close(context, window);
    for (std::size_t slot = 0; slot < slots; ++slot) buffers_[slot].close(context, window);
  }
}

void Optimizer::begin_update(ops::Context& context, const StepRates& rates, const StepLoss& loss,
                             bool measures) {
  TRIREME_EXPECT(!measures || tensor_norms_);
  measures_ = measures;
  const float limit = gradient_limit(loss);
  // 1. Norms and the decision.
  gradient_squares_.measure(context, store_.flat_gradient(), limit);
  if (measures) tensor_norms_->copy(context, TensorNorms::Kind::gradient, gradient_squares_);
  decide_step(context, rates, loss);
  // 2. Trust ratios and directions. Directions have the memory and the sums of the gradients.
  if (measures || has_trust_ratios()) weight_squares_->measure(context, store_.master_buffer());
  set_trust_ratios(context, false);
  if (std::ranges::any_of(rules_, makes_directions, &RuleUse::rule)) {
    run_passes(context, &UpdateRule::direction, limit);
    matrix_directions_.replace(context);
  }
  if (has_trust_ratios(true)) {
    gradient_squares_.measure(context, store_.flat_gradient());
    set_trust_ratios(context, true);
  }
  // 3. The update.
  run_passes(context, &UpdateRule::step, limit);
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
