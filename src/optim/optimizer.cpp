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

std::vector<std::string> slot_names(OptimizerKind kind) {
  if (kind == OptimizerKind::adamw) return {"exp_avg", "exp_avg_sq"};
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

/// squares[t] = the row sums of tensor t, added in row order.
void add_by_tensor(const std::vector<ops::FlatRow>& rows, const std::vector<double>& row_sums, std::vector<double>& squares) {
  std::fill(squares.begin(), squares.end(), 0.0);
  for (std::size_t r = 0; r < rows.size(); ++r) squares[static_cast<std::size_t>(rows[r].tensor)] += row_sums[r];
}

/// LARS (You et al. 2017, algorithm 1): trust * |w| / (|g| + decay * |w|).
double local_rate(double trust, double decay, double weight_norm, double gradient_norm) {
  if (weight_norm == 0 || gradient_norm == 0) return 1;
  return trust * weight_norm / (gradient_norm + decay * weight_norm);
}

double bias_correction(double beta, std::int64_t update) { return 1 - std::pow(beta, static_cast<double>(update)); }

}  // namespace

Optimizer::Optimizer(const OptimizerOptions& options, parallel::ParameterStore& store, Arena& state)
    : options_(options),
      store_(store),
      chunks_(store.layout().chunks()),
      rates_(fixed_rates(options, store.list())),
      row_sums_(store.layout().rows().size()),
      weight_squares_(rates_.size()),
      gradient_squares_(rates_.size()) {
  for (const std::string& name : slot_names(options.kind)) {
    slots_.push_back({name, state.allocate(DType::float32, {store.layout().elements()})});
    const Tensor& flat = slots_.back().flat;
    if (flat.data != nullptr) std::memset(flat.data, 0, static_cast<std::size_t>(flat.bytes()));
  }
}

Optimizer::Norms Optimizer::measure_gradient(ops::Context& context) {
  const std::vector<ops::FlatRow>& rows = store_.layout().rows();
  ops::row_square_sums(context, store_.flat_gradient(), rows.data(), static_cast<std::int64_t>(rows.size()), row_sums_.data());
  if (context.meta()) return {};
  double weights = 0, statistics = 0;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    (rates_[static_cast<std::size_t>(rows[r].tensor)].statistic ? statistics : weights) += row_sums_[r];
  }
  // A variance may overflow under a finite loss; then the step is dropped too, or the running statistics would never recover.
  return {.gradient = std::sqrt(weights), .finite = std::isfinite(weights) && std::isfinite(statistics)};
}

void Optimizer::set_local_rates(ops::Context& context, double clip_factor) {
  const std::vector<ops::FlatRow>& rows = store_.layout().rows();
  if (!context.meta()) add_by_tensor(rows, row_sums_, gradient_squares_);
  ops::row_square_sums(context, store_.flat_master(), rows.data(), static_cast<std::int64_t>(rows.size()), row_sums_.data());
  if (context.meta()) return;
  add_by_tensor(rows, row_sums_, weight_squares_);
  for (std::size_t t = 0; t < rates_.size(); ++t) {
    const parallel::ParameterSpec& spec = store_.list().entries()[t].spec;
    if (rates_[t].statistic || !spec.trust) continue;
    rates_[t].trust = static_cast<float>(
        local_rate(options_.trust_coefficient, rates_[t].weight_decay, std::sqrt(weight_squares_[t]), clip_factor * std::sqrt(gradient_squares_[t])));
  }
}

void Optimizer::update(ops::Context& context, const ops::Judgement& judgement) {
  const ops::FlatState state{.weight = store_.flat_master(),
                             .gradient = store_.flat_gradient(),
                             .slot1 = slots_[0].flat,
                             .slot2 = slots_.size() > 1 ? slots_[1].flat : Tensor{},
                             .compute = store_.flat_compute()};
  const auto count = static_cast<std::int64_t>(chunks_.size());
  const auto momentum = static_cast<float>(options_.momentum);
  switch (options_.kind) {
    case OptimizerKind::sgd:
      ops::update_sgd(context, {momentum, options_.nesterov}, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    case OptimizerKind::lars:
      ops::update_lars(context, {momentum}, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    case OptimizerKind::adamw: {
      const ops::AdamWRule rule{static_cast<float>(options_.beta1), static_cast<float>(options_.beta2), static_cast<float>(options_.epsilon)};
      ops::update_adamw(context, rule, state, chunks_.data(), count, rates_.data(), &judgement);
      return;
    }
  }
}

StepOutcome Optimizer::step(ops::Context& context, double rate, bool loss_finite) {
  const Norms norms = measure_gradient(context);
  const bool apply = loss_finite && norms.finite;
  const double clip_factor = options_.clip_norm > 0 ? std::min(1.0, options_.clip_norm / (norms.gradient + clip_epsilon)) : 1.0;

  for (ops::TensorRates& tensor : rates_) {
    if (!tensor.statistic) tensor.rate = static_cast<float>(rate);
  }
  if (options_.kind == OptimizerKind::lars) set_local_rates(context, clip_factor);

  const ops::Judgement judgement{.apply = apply ? 1 : 0,
                                 .gradient_factor = static_cast<float>(clip_factor),
                                 .bias_correction1 = static_cast<float>(bias_correction(options_.beta1, updates_ + 1)),
                                 .bias_correction2 = static_cast<float>(bias_correction(options_.beta2, updates_ + 1))};
  update(context, judgement);
  if (apply) {
    ++updates_;
    store_.weights_changed();
  }
  return {apply, norms.gradient};
}

}  // namespace trireme::optim
