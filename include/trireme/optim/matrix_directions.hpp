// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/optim/norms.hpp"
#include "trireme/optim/options.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// The matrices of this rank whose directions a rule replaces as a whole
/// (UpdateRule::direction_of_matrix). Optimizer owns one.
///
/// Sharding leaves a matrix on one data rank (Atom::tensor). The ranks of the tensor group that
/// hold its parts gather them, and each replaces the whole matrix and keeps its own part:
///
///   part of rank 0 | gather | the whole matrix | direction_of_matrix | part of rank 0
///   part of rank 1 | gather | the whole matrix | direction_of_matrix | part of rank 1
///
/// Parts of columns are transposed first, so that parts are always ranges of rows.
class MatrixDirections {
 public:
  MatrixDirections(const OptimizerOptions& options, const parallel::ParameterStore& store,
                   const NormScope& scope);
  /// Enqueues the replacement of the directions, which are in the place of the gradient. Collective
  /// over the tensor group. Takes its buffers from the workspace.
  void replace(ops::Context& context) const;

 private:
  struct Matrix {
    const UpdateRule* rule;
    std::int64_t offset, rows, columns;  ///< of the part of this rank
    bool split_columns = false;
    /// Byte offsets of the parts of the tensor group's ranks. Empty: this rank has the whole.
    std::vector<std::int64_t> bounds = {};
  };
  void replace_split(ops::Context& context, const Matrix& matrix, const Tensor& part) const;

  RuleOptions options_;
  const parallel::ParameterStore& store_;
  comm::Communicator tensor_;
  comm::Engine* engine_;
  std::vector<Matrix> matrices_;
};

}  // namespace trireme::optim
