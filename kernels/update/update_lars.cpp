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
  KOKKOS_FUNCTION float operator()(float w, float g, float& v, float&,
                                   const TensorRates& rates) const {
    v = rates.momentum * v + rates.rate * rates.trust_ratio * (g + rates.weight_decay * w);
    return w - v;
  }
};

}  // namespace

void update_lars(const Stream& stream, const RuleNumbers&, const Update& args) {
  run_rule(stream, lars_label, LarsRule{}, args);
}

}  // namespace trireme::kernels
