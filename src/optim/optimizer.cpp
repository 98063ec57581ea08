#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

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

Optimizer::Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store, const NormGroups& groups, Arena& state)
    : options_(options),
      store_(store),
      chunks_(store.owned().chunks()),
      rates_(fixed_rates(options, store.list())),
      gradient_squares_(store, groups),
      weight_squares_(store, groups) {
  for (const std::string& name : slot_names(options.kind)) {
    slots_.push_back({name, state.allocate(DType::float32, {store.owned().elements()})});
    const Tensor& flat = slots_.back().flat;
    if (flat.data != nullptr) std::memset(flat.data, 0, static_cast<std::size_t>(flat.bytes()));
  }
}

/// trust = ratio(|w|, |gradient|) of each tensor that it applies to, from the squares measured last.
template <class Ratio>
void Optimizer::set_trust(ops::Context& context, Ratio&& ratio) {
  weight_squares_.measure(context, store_.flat_master());
  if (context.meta()) return;
  for (std::size_t t = 0; t < rates_.size(); ++t) {
    if (rates_[t].statistic || !store_.list().entries()[t].spec.trust) continue;
    rates_[t].trust = static_cast<float>(ratio(std::sqrt(weight_squares_.of(t)), std::sqrt(gradient_squares_.of(t)), rates_[t].weight_decay));
  }
}

void Optimizer::update(ops::Context& context, const ops::Judgement& judgement, double clip_factor) {
  const ops::FlatState state{.weight = store_.flat_master(),
                             .gradient = store_.flat_gradient(),
                             .slot1 = slots_[0].flat,
                             .slot2 = slots_.size() > 1 ? slots_[1].flat : Tensor{},
                             .working = store_.flat_working()};
  const auto count = static_cast<std::int64_t>(chunks_.size());
  const auto momentum = static_cast<float>(options_.momentum);
  const auto beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2), epsilon = static_cast<float>(options_.epsilon);
  switch (options_.kind) {
    case OptimizerKind::sgd:
      ops::update_sgd(context, {momentum, options_.nesterov}, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    case OptimizerKind::lars:
      set_trust(context, [&](double weight, double gradient, double decay) {
        return local_rate(options_.trust_coefficient, decay, weight, clip_factor * gradient);
      });
      ops::update_lars(context, {momentum}, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    case OptimizerKind::adamw:
      ops::update_adamw(context, {beta1, beta2, epsilon}, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    case OptimizerKind::lamb:
      ops::lamb_direction(context, {beta1, beta2, epsilon}, state, chunks_.data(), count, rates_.data(), &judgement);
      gradient_squares_.measure(context, state.gradient);
      set_trust(context, [](double weight, double direction, double) { return trust_ratio(weight, direction); });
      ops::update_lamb(context, state, chunks_.data(), count, rates_.data(), &judgement);
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
  const ops::Judgement judgement{.apply = apply ? 1 : 0,
                                 .gradient_factor = static_cast<float>(clip_factor),
                                 .bias_correction1 = static_cast<float>(bias_correction(options_.beta1, updates_ + 1)),
                                 .bias_correction2 = static_cast<float>(bias_correction(options_.beta2, updates_ + 1))};
  update(context, judgement, clip_factor);
  if (apply) {
    ++updates_;
    store_.weights_changed();
  }
  return {apply, norm};
}

}  // namespace trireme::optim
