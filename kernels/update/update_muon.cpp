// SPDX-License-Identifier: Apache-2.0
//
// Muon (Jordan et al. 2024), as in torch.optim.Muon: the two passes around the orthogonalization of
// each matrix (src/ops/orthogonalize.cpp).

#include "update_rule.hpp"

namespace trireme::kernels {
namespace {

const std::string muon_direction_label = "trireme/kernels/muon_direction";
const std::string muon_update_label = "trireme/kernels/update_muon";

/// Returns the point between two numbers, in the form of torch.lerp: the nearer end is the start.
KOKKOS_INLINE_FUNCTION float between(float from, float to, float part) {
  return part < 0.5f ? from + part * (to - from) : to - (to - from) * (1 - part);
}

/// The average of the gradients, or with Nesterov's form a point between it and the gradient.
struct MuonDirection {
  static constexpr int slots = 1;  // the average
  static constexpr Pass pass = Pass::direction;
  bool nesterov;
  KOKKOS_FUNCTION float operator()(float, float g, float& average, float&,
                                   const TensorRates& rates) const {
    average = between(average, g, 1 - rates.momentum);
    return nesterov ? between(g, average, rates.momentum) : average;
  }
};

/// The weight decay has the unscaled rate. The scale of the matrix is in the place of a trust
/// ratio.
struct MuonStep {
  static constexpr int slots = 0;
  static constexpr Pass pass = Pass::along_direction;
  KOKKOS_FUNCTION float operator()(float w, float direction, float&, float&,
                                   const TensorRates& rates) const {
    return w * (1 - rates.rate * rates.weight_decay) - rates.rate * rates.trust_ratio * direction;
  }
};

}  // namespace

void muon_direction(const Stream& stream, const RuleNumbers& numbers, const Update& args) {
  run_rule(stream, muon_direction_label, MuonDirection{numbers.nesterov}, args);
}

void update_muon(const Stream& stream, const RuleNumbers&, const Update& args) {
  run_rule(stream, muon_update_label, MuonStep{}, args);
}

}  // namespace trireme::kernels
