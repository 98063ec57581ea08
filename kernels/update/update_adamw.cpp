// SPDX-License-Identifier: Apache-2.0
//
// AdamW (Loshchilov and Hutter 2019), in PyTorch's order: weight decay first, then the step with
// both bias corrections.

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string adamw_label = "trireme/kernels/update_adamw";

struct AdamWRule {
  static constexpr int slots = 2;  // the moments
  static constexpr Pass pass = Pass::whole;
  float beta1, beta2, epsilon;
  KOKKOS_FUNCTION float operator()(float w, float g, float& m, float& v,
                                   const TensorRates& rates) const {
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * (g * g);
    const float denominator = sqrtf(v / rates.bias_correction2) + epsilon;
    return w * (1 - rates.rate * rates.weight_decay) -
           rates.rate / rates.bias_correction1 * (m / denominator);
  }
};

}  // namespace

void update_adamw(const Stream& stream, const RuleNumbers& numbers, const Update& args) {
  run_rule(stream, adamw_label, AdamWRule{numbers.beta1, numbers.beta2, numbers.epsilon}, args);
}

}  // namespace trireme::kernels
