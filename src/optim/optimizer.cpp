#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/ops/elementwise.hpp"

namespace trireme::optim {
namespace {

// running = 0.9 running + 0.1 batch (contract, section 7)
constexpr float statistic_momentum = 0.1f;
// keeps the clip factor finite for a gradient of zeros; PyTorch's value (contract, section 7)
constexpr double clip_epsilon = 1e-6;
// lamb's trust ratio is at most this (contract, section 7)
constexpr double largest_trust = 10;

std::vector<std::string> slot_names(OptimizerKind kind) {
  if (kind == OptimizerKind::adamw || kind == OptimizerKind::lamb) return {"exp_avg", "exp_avg_sq"};
  return {"momentum"};
}

bool takes_trust(OptimizerKind kind) { return kind == OptimizerKind::lars || kind == OptimizerKind::lamb; }

/// What does not change from step to step: decay, and which tensors are statistics.
std::vector<ops::TensorRates> fixed_rates(const OptimizerOptions& options, const parallel::ParameterList& list) {
  std::vector<ops::TensorRates> rates;
  for (const parallel::ParameterList::Entry& entry : list.entries()) {
    const bool statistic = entry.spec.role == parallel::Role::statistic;
    const bool decays = !statistic && (entry.spec.decay || options.decay_all);
    rates.push_back({.rate = statistic ? statistic_momentum : 0,
                     .weight_decay = decays ? static_cast<float>(options.weight_decay) : 0,
                     .trust = 1,
                     .statistic = statistic ? 1 : 0});
  }
  return rates;
}

/// LARS (You et al. 2017, algorithm 1): trust * |w| / (|g| + decay * |w|).
double local_rate(double trust, double decay, double weight_norm, double gradient_norm) {
  if (weight_norm == 0 || gradient_norm == 0) return 1;
  return trust * weight_norm / (gradient_norm + decay * weight_norm);
}

/// LAMB (You et al. 2020, algorithm 2): |w| / |direction|.
double trust_ratio(double weight_norm, double direction_norm) {
  if (weight_norm == 0 || direction_norm == 0) return 1;
  return std::min(largest_trust, weight_norm / direction_norm);
}

double bias_correction(double beta, std::int64_t update) { return 1 - std::pow(beta, static_cast<double>(update)); }

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store, const NormGroups& groups, const parallel::StateMemory& state)
    : options_(options), store_(store), rates_(fixed_rates(options, store.list())), gradient_squares_(store, groups, state) {
  if (takes_trust(options.kind)) weight_squares_.emplace(store, groups, state);
  for (const parallel::Shard::Window& window : store.owned().windows()) {
    WindowChunks& place = windows_.emplace_back();
    place.begin = chunks_.size();
    for (const ops::FlatChunk& chunk : store.owned().chunks(window)) {
      chunks_.push_back(chunk);
      if (store.flat_working().defined()) place.working_bytes += chunk.elements * size_of(chunk.bfloat16 ? DType::bfloat16 : DType::float32);
    }
    place.end = chunks_.size();
  }
  chunk_table_ = {chunks_, state};
  rate_table_ = {rates_, state};
  judgement_table_ = {std::span(&judgement_, 1), state};
  for (const std::string& name : slot_names(options.kind)) {
    buffers_.emplace_back(store.owned(), state);
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
  if (!ema_) return;
  for (const parallel::Shard::Window& window : store_.owned().windows()) {
    ops::copy(context, store_.master_buffer().open(context, window), ema_->open(context, window));
    ema_->close(context, window);
  }
}

void Optimizer::exchange_ema(ops::Context& context) {
  for (const parallel::Shard::Window& window : store_.owned().windows()) {
    ops::exchange(context, store_.master_buffer().open(context, window), ema_->open(context, window));
    store_.master_buffer().close(context, window);
    ema_->close(context, window);
  }
}

/// trust = ratio(|w|, |gradient|) of each tensor that it applies to, from the squares measured last.
template <class Ratio>
void Optimizer::set_trust(ops::Context& context, Ratio&& ratio) {
  weight_squares_->measure(context, store_.master_buffer());
  if (context.meta()) return;
  for (std::size_t t = 0; t < rates_.size(); ++t) {
    if (rates_[t].statistic || !store_.list().entries()[t].spec.trust) continue;
    rates_[t].trust = static_cast<float>(ratio(std::sqrt(weight_squares_->of(t)), std::sqrt(gradient_squares_.of(t)), rates_[t].weight_decay));
  }
  rate_table_.changed();
}

/// Calls pass(state, lists) for each window; of the state it may change the gradient and what moves. Slots that do not are not there.
/// The average follows weights that do.
template <class Pass>
void Optimizer::for_each_window(ops::Context& context, const Moves& moves, Pass&& pass) {
  const Stream& stream = context.stream();
  const ops::FlatChunk* chunks = chunk_table_.on(stream);
  const ops::TensorRates* rates = rate_table_.on(stream);
  const ops::Judgement* judgement = judgement_table_.on(stream);
  for (std::size_t number = 0; number < windows_.size(); ++number) {
    const parallel::Shard::Window& window = store_.owned().windows()[number];
    const WindowChunks& place = windows_[number];
    const auto slot = [&](std::size_t which) { return moves.slots && which < buffers_.size() ? buffers_[which].open(context, window) : Tensor{}; };
    const ops::FlatState state{.weight = store_.master_buffer().open(context, window),
                               .gradient = store_.flat_gradient().rows(window.begin, window.end),
                               .slot1 = slot(0),
                               .slot2 = slot(1),
                               .working = store_.flat_working(),
                               .working_bytes = place.working_bytes};
    const Lists lists{chunks + place.begin, static_cast<std::int64_t>(place.end - place.begin), rates, judgement};
    pass(state, lists);
    if (moves.weights && ema_) {
      ops::update_ema(context, options_.ema, state.weight, ema_->open(context, window), lists.chunks, lists.chunk_count, lists.judgement);
      ema_->close(context, window);
    }
    if (moves.weights) store_.master_buffer().close(context, window);
    for (std::size_t which = 0; moves.slots && which < buffers_.size(); ++which) buffers_[which].close(context, window);
  }
}

void Optimizer::update(ops::Context& context, double clip_factor) {
  const auto momentum = static_cast<float>(options_.momentum);
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2), epsilon = static_cast<float>(options_.epsilon);
  switch (options_.kind) {
    case OptimizerKind::sgd:
      for_each_window(context, {}, [&](const ops::FlatState& state, const Lists& lists) {
        ops::update_sgd(context, {momentum, options_.nesterov}, state, lists.chunks, lists.chunk_count, lists.rates, lists.judgement);
      });
      return;
    case OptimizerKind::lars:
      set_trust(context,
                [&](double weight, double gradient, double decay) { return local_rate(options_.trust_coefficient, decay, weight, clip_factor * gradient); });
      for_each_window(context, {}, [&](const ops::FlatState& state, const Lists& lists) {
        ops::update_lars(context, {momentum}, state, lists.chunks, lists.chunk_count, lists.rates, lists.judgement);
      });
      return;
    case OptimizerKind::adamw:
      for_each_window(context, {}, [&](const ops::FlatState& state, const Lists& lists) {
        ops::update_adamw(context, {beta1, beta2, epsilon}, state, lists.chunks, lists.chunk_count, lists.rates, lists.judgement);
      });
      return;
    case OptimizerKind::lamb:
      for_each_window(context, {.weights = false}, [&](const ops::FlatState& state, const Lists& lists) {
        ops::lamb_direction(context, {beta1, beta2, epsilon}, state, lists.chunks, lists.chunk_count, lists.rates, lists.judgement);
      });
      gradient_squares_.measure(context, store_.flat_gradient());
      set_trust(context, [](double weight, double direction, double) { return trust_ratio(weight, direction); });
      for_each_window(context, {.slots = false}, [&](const ops::FlatState& state, const Lists& lists) {
        ops::update_lamb(context, state, lists.chunks, lists.chunk_count, lists.rates, lists.judgement);
      });
      return;
  }
}

StepOutcome Optimizer::step(ops::Context& context, double rate, bool loss_finite) {
  gradient_squares_.measure(context, store_.flat_gradient());
  const double norm = std::sqrt(gradient_squares_.weights());
  // A variance may overflow under a finite loss; then the step is dropped too, or the running statistics would never recover.
  const bool apply = loss_finite && std::isfinite(norm) && std::isfinite(gradient_squares_.statistics());
  const double clip_factor = options_.clip_norm > 0 ? std::min(1.0, options_.clip_norm / (norm + clip_epsilon)) : 1.0;

  for (ops::TensorRates& tensor : rates_) {
    if (!tensor.statistic) tensor.rate = static_cast<float>(rate);
  }
  rate_table_.changed();
  judgement_ = {.apply = apply ? 1 : 0,
                .gradient_factor = static_cast<float>(clip_factor),
                .bias_correction1 = static_cast<float>(bias_correction(options_.beta1, updates_ + 1)),
                .bias_correction2 = static_cast<float>(bias_correction(options_.beta2, updates_ + 1))};
  judgement_table_.changed();
  update(context, clip_factor);
  if (apply) {
    ++updates_;
    store_.weights_changed();
  }
  return {apply, norm};
}

}  // namespace trireme::optim
