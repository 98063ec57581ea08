// SPDX-License-Identifier: Apache-2.0
//
// LAMB (You et al. 2020, algorithm 2) with bias correction, in two passes. Between them the norms
// of weights and directions are computed, from which step_decision.cpp makes the trust ratios.

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string lamb_direction_label = "trireme/kernels/lamb_direction";
const std::string lamb_update_label = "trireme/kernels/update_lamb";

/// The direction of the step. Weight decay is part of it, so it is part of its norm.
struct LambDirection {
  static constexpr int slots = 2;  // the moments
  static constexpr Pass pass = Pass::direction;
  float beta1, beta2, epsilon;
  KOKKOS_FUNCTION float operator()(float w, float g, float& m, float& v,
                                   const TensorRates& rates) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * (g * g);
    return m / rates.bias_correction1 / (sqrtf(v / rates.bias_correction2) + epsilon) +
           rates.weight_decay * w;
  }
};

struct LambStep {
  static constexpr int slots = 0;
  static constexpr Pass pass = Pass::along_direction;
  KOKKOS_FUNCTION float operator()(float w, float direction, float&, float&,
                                   const TensorRates& rates) const {
    return w - rates.rate * rates.trust_ratio * direction;
  }
};

}  // namespace

void lamb_direction(const Stream& stream, const RuleNumbers& numbers, const Update& args) {
  run_rule(stream, lamb_direction_label,
           LambDirection{numbers.beta1, numbers.beta2, numbers.epsilon}, args);
}

void update_lamb(const Stream& stream, const RuleNumbers&, const Update& args) {
  run_rule(stream, lamb_update_label, LambStep{}, args);
}

}  // namespace trireme::kernels
