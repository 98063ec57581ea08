// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "trireme/ops/update/step_decision.hpp"
#include "trireme/ops/update/update.hpp"

namespace trireme::optim {

struct RuleOptions;

/// The values beside an element itself on which its update depends.
enum class RuleScope : std::uint8_t {
  element,      ///< nothing
  tensor_norm,  ///< norms of its whole tensor, which may be spread over ranks
  matrix        ///< its whole tensor: sharding leaves tensors whole, a tensor group splits them
};

/// A rule by which weights follow from gradients: one constant in a file of its own in
/// src/optim/rules. Other libraries do not name it; they ask it.
///
/// `Optimizer` does everything around it: norms, clipping, loss scale, steps that are not applied,
/// sharded and offloaded buffers, the average and the working weights.
struct UpdateRule {
  /// The value of optimizer.kind.
  const char* word;
  RuleScope scope = RuleScope::element;
  /// Names of its state in checkpoints (docs/reference/files.md); null: no further slot.
  std::array<const char*, kernels::max_slots> slots = {};
  /// It has no slots if momentum = 0.
  bool slots_are_momentum = false;
  /// Its moments have a bias correction, so their updates are counted from their own start.
  bool corrects_bias = false;
  /// The keys of [optimizer] that belong to it: momentum, nesterov, newton_schulz, scale,
  /// trust_coefficient, beta1, beta2, epsilon.
  std::array<std::string_view, 8> keys = {};
  /// The defaults of momentum and nesterov, where it has these keys.
  double default_momentum = 0.9;
  bool default_nesterov = false;
  /// A larger batch than 8,192 with a linearly scaled rate costs accuracy (Goyal et al. 2017): the
  /// rule for such batches. Null: none.
  const UpdateRule* rule_of_large_batches = nullptr;
  /// With scope tensor_norm: enqueues the trust ratios of tensors, from norms of the weights and of
  /// the gradients, or of the directions if there is a pass that makes them.
  void (*trust)(ops::Context&, const RuleOptions&, const ops::TrustRatioArgs&) = nullptr;
  /// A first pass that puts the direction of the step in place of the gradient. No kernel: none.
  ops::UpdatePass direction = {};
  // Rules of scope matrix have all of these.
  /// The rule of all weights that are not matrices of hidden layers (parallel::MatrixForm).
  const UpdateRule* rule_of_others = nullptr;
  /// Enqueues the replacement of a direction by another one, in a whole matrix
  /// [rows, columns] (float32). Rows and columns may be exchanged and in any order.
  void (*direction_of_matrix)(ops::Context&, const RuleOptions&, const Tensor& matrix) = nullptr;
  /// Returns its operations, 2 for each multiply-add.
  double (*flops_of_matrix)(std::int64_t rows, std::int64_t columns) = nullptr;
  /// Returns the factor of the rate for a matrix of these extents; it takes the
  /// place of a trust ratio.
  double (*scale_of_matrix)(const RuleOptions&, std::int64_t out, std::int64_t in) = nullptr;
  /// The pass that writes the weights.
  ops::UpdatePass step;

  bool has_key(std::string_view key) const;
};

/// Returns all rules, in the order in which documents list them.
std::span<const UpdateRule* const> rules();
/// Returns the rule of this word, which must exist.
const UpdateRule& rule(std::string_view word);
/// Returns the words of the rules with a property, with commas between them. `quote` stands around
/// each, and `last` in front of the last one, as in `"sgd" or "lars"`.
std::string rule_words(const std::function<bool(const UpdateRule&)>& property,
                       std::string_view quote = "", std::string_view last = " or ");
/// The same for the rules that have a key; for all rules if it is "".
std::string rule_words(std::string_view key, std::string_view quote = "",
                       std::string_view last = " or ");

}  // namespace trireme::optim
