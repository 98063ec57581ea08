// SPDX-License-Identifier: Apache-2.0
//
// Muon (Jordan et al. 2024): the average of the gradients of each matrix is orthogonalized. All
// other weights follow AdamW at the same rate. Two passes, with the orthogonalization between them.
#include <algorithm>
#include <cmath>

#include "trireme/ops/orthogonalize.hpp"
#include "trireme/optim/options.hpp"

namespace trireme::optim {
namespace {

void orthogonalize(ops::Context& context, const RuleOptions& options, const Tensor& matrix) {
  ops::orthogonalize(context, matrix, options.newton_schulz);
}

double scale_of(const RuleOptions& options, std::int64_t out, std::int64_t in) {
  const double rows = static_cast<double>(out), columns = static_cast<double>(in);
  return options.scale == MatrixScale::adamw ? 0.2 * std::sqrt(std::max(rows, columns))
                                             : std::sqrt(std::max(1.0, rows / columns));
}

}  // namespace

extern const UpdateRule adamw;

extern constinit const UpdateRule muon{
    .word = "muon",
    .scope = RuleScope::matrix,
    .slots = {"muon_momentum"},
    .keys = {"momentum", "nesterov", "newton_schulz", "scale", "beta1", "beta2", "epsilon"},
    .default_momentum = 0.95,
    .default_nesterov = true,
    .direction = {.op = ops::Op::of_rule("muon_direction"),
                  .kernel = kernels::muon_direction,
                  .writes_weights = false,
                  .slots = 1},
    .rule_of_others = &adamw,
    .direction_of_matrix = orthogonalize,
    .flops_of_matrix = ops::orthogonalize_flops,
    .scale_of_matrix = scale_of,
    .step = {.op = ops::Op::of_rule("update_muon"), .kernel = kernels::update_muon}};

}  // namespace trireme::optim
