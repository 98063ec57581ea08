// SPDX-License-Identifier: Apache-2.0
//
// SGD with momentum, in PyTorch's form.

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string sgd_label = "trireme/kernels/update_sgd";

/// With one slot, the velocity; without momentum there is none.
template <int count>
struct SgdRule {
  static constexpr int slots = count;
  static constexpr Pass pass = Pass::whole;
  bool nesterov;
  KOKKOS_FUNCTION float operator()(float w, float g, float& v, float&,
                                   const TensorRates& rates) const {
    const float decayed = g + rates.weight_decay * w;
    v = rates.momentum * v + decayed;
    return w - rates.rate * (nesterov ? decayed + rates.momentum * v : v);
  }
};

}  // namespace

void update_sgd(const Stream& stream, const RuleNumbers& numbers, const Update& args) {
  args.slots[0] != nullptr ? run_rule(stream, sgd_label, SgdRule<1>{numbers.nesterov}, args)
                           : run_rule(stream, sgd_label, SgdRule<0>{numbers.nesterov}, args);
}

}  // namespace trireme::kernels
