// SPDX-License-Identifier: Apache-2.0
//
// LARS (You et al. 2017, algorithm 1). Its trust ratios come from step_decision.cpp.

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string lars_label = "trireme/kernels/update_lars";

struct LarsRule {
  static constexpr int slots = 1;  // the velocity
  static constexpr Pass pass = Pass::whole;
  bool nesterov;
  KOKKOS_FUNCTION float operator()(float w, float g, float& v, float&,
                                   const TensorRates& rates) const {
    const float step = rates.rate * rates.trust_ratio * (g + rates.weight_decay * w);
    v = rates.momentum * v + step;
    return w - (nesterov ? step + rates.momentum * v : v);
  }
};

}  // namespace

void update_lars(const Stream& stream, const RuleNumbers& numbers, const Update& args) {
  run_rule(stream, lars_label, LarsRule{numbers.nesterov}, args);
}

}  // namespace trireme::kernels
