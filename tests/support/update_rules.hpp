// SPDX-License-Identifier: Apache-2.0
#pragma once

// The update rules, as tests of any library loop over them: for each the formula of
// docs/reference/numerics.md in double precision, one tensor at a time, and a rate at which a small
// network learns. A new rule is added here.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "trireme/optim/optimizer.hpp"

namespace trireme::test {

/// One tensor and its state.
struct ReferenceTensor {
  std::vector<double> weight, first, second;
};

/// The numbers of a step for one tensor.
struct ReferenceRates {
  double rate = 0, decay = 0;
  bool trusts = true;  ///< a trust ratio applies
  double max_trust = std::numeric_limits<double>::infinity();
  int updates = 1;                    ///< including this one
  std::size_t rows = 1, columns = 1;  ///< of a matrix, in its stored order
  bool in_out = false;                ///< its rows are inputs
};

inline double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum);
}

inline void update_sgd(const optim::RuleOptions& options, ReferenceTensor& tensor,
                       const std::vector<double>& g, const ReferenceRates& r) {
  const double mu = options.momentum;
  for (std::size_t i = 0; i < g.size(); ++i) {
    double &w = tensor.weight[i], &m = tensor.first[i];
    const double decayed = g[i] + r.decay * w;
    m = mu * m + decayed;
    w -= r.rate * (options.nesterov ? decayed + mu * m : m);
  }
}

inline void update_lars(const optim::RuleOptions& options, ReferenceTensor& tensor,
                        const std::vector<double>& g, const ReferenceRates& r) {
  const double weight = norm(tensor.weight), gradient = norm(g);
  const double local = r.trusts && weight > 0 && gradient > 0
                           ? std::min(r.max_trust, options.trust_coefficient * weight /
                                                       (gradient + r.decay * weight))
                           : 1;
  for (std::size_t i = 0; i < g.size(); ++i) {
    double &w = tensor.weight[i], &m = tensor.first[i];
    const double step = r.rate * local * (g[i] + r.decay * w);
    m = options.momentum * m + step;
    w -= options.nesterov ? step + options.momentum * m : m;
  }
}

/// Updates the moments and returns Adam's direction without weight decay.
inline double adam_direction(const optim::RuleOptions& options, double g, int updates, double& m,
                             double& v) {
  m = options.beta1 * m + (1 - options.beta1) * g;
  v = options.beta2 * v + (1 - options.beta2) * g * g;
  return m / (1 - std::pow(options.beta1, updates)) /
         (std::sqrt(v / (1 - std::pow(options.beta2, updates))) + options.epsilon);
}

/// torch.optim.AdamW, the algorithm of its documentation.
inline void update_adamw(const optim::RuleOptions& options, ReferenceTensor& tensor,
                         const std::vector<double>& g, const ReferenceRates& r) {
  for (std::size_t i = 0; i < g.size(); ++i) {
    double& w = tensor.weight[i];
    w -= r.rate * r.decay * w;
    w -= r.rate * adam_direction(options, g[i], r.updates, tensor.first[i], tensor.second[i]);
  }
}

/// You et al. 2020, algorithm 2.
inline void update_lamb(const optim::RuleOptions& options, ReferenceTensor& tensor,
                        const std::vector<double>& g, const ReferenceRates& r) {
  std::vector<double> direction;
  for (std::size_t i = 0; i < g.size(); ++i)
    direction.push_back(
        adam_direction(options, g[i], r.updates, tensor.first[i], tensor.second[i]) +
        r.decay * tensor.weight[i]);
  const double weight = norm(tensor.weight), length = norm(direction);
  const double ratio =
      r.trusts && weight > 0 && length > 0 ? std::min({10.0, r.max_trust, weight / length}) : 1;
  for (std::size_t i = 0; i < g.size(); ++i) tensor.weight[i] -= r.rate * ratio * direction[i];
}

/// A matrix [rows, columns] in double precision.
struct ReferenceMatrix {
  std::size_t rows, columns;
  std::vector<double> values;
  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

inline ReferenceMatrix product(const ReferenceMatrix& a, const ReferenceMatrix& b) {
  ReferenceMatrix result{a.rows, b.columns, std::vector<double>(a.rows * b.columns)};
  for (std::size_t i = 0; i < a.rows; ++i)
    for (std::size_t j = 0; j < b.columns; ++j)
      for (std::size_t k = 0; k < a.columns; ++k)
        result.values[i * b.columns + j] += a.at(i, k) * b.at(k, j);
  return result;
}

inline ReferenceMatrix transposed(const ReferenceMatrix& a) {
  ReferenceMatrix result{a.columns, a.rows, {}};
  for (std::size_t i = 0; i < result.rows; ++i)
    for (std::size_t j = 0; j < result.columns; ++j) result.values.push_back(a.at(j, i));
  return result;
}

/// Five steps of Newton-Schulz (Jordan et al. 2024), in the form of torch.optim.Muon.
inline ReferenceMatrix orthogonalized(ReferenceMatrix x) {
  if (x.rows > x.columns) return transposed(orthogonalized(transposed(x)));
  const double size = std::max(norm(x.values), 1e-7);
  for (double& value : x.values) value /= size;
  for (int step = 0; step < 5; ++step) {
    const ReferenceMatrix gram = product(x, transposed(x));
    ReferenceMatrix factor = product(gram, gram);
    for (std::size_t i = 0; i < factor.values.size(); ++i)
      factor.values[i] = -4.7750 * gram.values[i] + 2.0315 * factor.values[i];
    const ReferenceMatrix change = product(factor, x);
    for (std::size_t i = 0; i < x.values.size(); ++i)
      x.values[i] = 3.4445 * x.values[i] + change.values[i];
  }
  return x;
}

inline void update_muon(const optim::RuleOptions& options, ReferenceTensor& tensor,
                        const std::vector<double>& g, const ReferenceRates& r) {
  const double mu = options.momentum;
  ReferenceMatrix direction{r.rows, r.columns, {}};
  for (std::size_t i = 0; i < g.size(); ++i) {
    tensor.first[i] += (1 - mu) * (g[i] - tensor.first[i]);
    direction.values.push_back(options.nesterov ? g[i] + mu * (tensor.first[i] - g[i])
                                                : tensor.first[i]);
  }
  const double larger = static_cast<double>(std::max(r.rows, r.columns)),
               shape = static_cast<double>(r.rows) / static_cast<double>(r.columns),
               ratio = r.in_out ? 1 / shape : shape;
  const double scale = options.scale == optim::MatrixScale::adamw ? 0.2 * std::sqrt(larger)
                                                                  : std::sqrt(std::max(1.0, ratio));
  direction = orthogonalized(std::move(direction));
  for (std::size_t i = 0; i < g.size(); ++i)
    tensor.weight[i] =
        tensor.weight[i] * (1 - r.rate * r.decay) - r.rate * scale * direction.values[i];
}

/// A rule as tests check it.
struct RuleCase {
  std::string_view word;
  double learning_rate;
  void (*update)(const optim::RuleOptions&, ReferenceTensor&, const std::vector<double>& gradient,
                 const ReferenceRates&);
};

inline constexpr RuleCase rule_cases[] = {{"sgd", 0.05, update_sgd},
                                          {"adamw", 0.005, update_adamw},
                                          {"lars", 2.0, update_lars},
                                          {"lamb", 0.02, update_lamb},
                                          {"muon", 0.01, update_muon}};

inline const RuleCase& case_of(const optim::UpdateRule& rule) {
  const auto* found = std::ranges::find(rule_cases, std::string_view(rule.word), &RuleCase::word);
  EXPECT_NE(found, std::end(rule_cases)) << rule.word << " has no case in update_rules.hpp";
  return *found;
}

/// Returns options of a rule whose numbers show within a few steps.
inline optim::OptimizerOptions options_of(const optim::UpdateRule& rule) {
  optim::OptimizerOptions options;
  options.rule = &rule;
  options.weight_decay = 0.02;
  options.trust_coefficient = 0.02;
  options.momentum = rule.default_momentum;
  options.nesterov = rule.default_nesterov;
  options.newton_schulz = DType::float32;
  return options;
}
inline optim::OptimizerOptions options_of(std::string_view word) {
  return options_of(optim::rule(word));
}

/// Returns the state of the rules of an optimizer, without the average: in "optimizer/<slot>".
inline parallel::StateList slots_of(const optim::Optimizer& optimizer) {
  parallel::StateList state;
  optimizer.add_state(state);
  std::erase_if(state, [](const parallel::StateEntry& entry) { return entry.group == "ema"; });
  return state;
}

}  // namespace trireme::test
