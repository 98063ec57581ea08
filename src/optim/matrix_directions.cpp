// SPDX-License-Identifier: Apache-2.0
//
// Directions of whole matrices, for rules of scope matrix. Called by Optimizer between the two
// passes of such a rule.
#include "trireme/optim/matrix_directions.hpp"

#include "trireme/base/expect.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/transpose.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::optim {

using Along = parallel::Split::Along;

MatrixDirections::MatrixDirections(const OptimizerOptions& options,
                                   const parallel::ParameterStore& store, const NormScope& scope)
    : options_(options), store_(store), tensor_(scope.tensor), engine_(scope.engine) {
  const auto& entries = store.list().entries();
  for (std::size_t index = 0; index < entries.size(); ++index) {
    const parallel::ParameterSpec& spec = entries[index].spec;
    if (spec.role != parallel::Role::weight || spec.frozen) continue;
    const UpdateRule& rule = rule_of(options, spec);
    const auto& owned = store.owned().owned_rows({static_cast<std::int32_t>(index)});
    if (rule.direction_of_matrix == nullptr || owned.row_begin == owned.row_end) continue;
    const parallel::TensorPartition& part = entries[index].partition;
    Matrix matrix{.rule = &rule,
                  .offset = owned.offset,
                  .rows = part.rows(),
                  .columns = part.row_elements(),
                  .split_columns = spec.split.along == Along::columns};
    TRIREME_EXPECT(owned.row_end - owned.row_begin == matrix.rows);
    if (!part.replicated()) {
      TRIREME_EXPECT(tensor_.size() > 1 && engine_ != nullptr);
      matrix.bounds = {0};
      for (int rank = 0; rank < tensor_.size(); ++rank)
        matrix.bounds.push_back(matrix.bounds.back() +
                                parallel::TensorPartition(spec, rank, tensor_.size()).elements() *
                                    size_of(DType::float32));
    }
    matrices_.push_back(std::move(matrix));
  }
}

void MatrixDirections::replace(ops::Context& context) const {
  for (const Matrix& matrix : matrices_) {
    const Tensor part = store_.flat_gradient()
                            .rows(matrix.offset, matrix.offset + matrix.rows * matrix.columns)
                            .reshaped({matrix.rows, matrix.columns});
    if (matrix.bounds.empty())
      matrix.rule->direction_of_matrix(context, options_, part);
    else
      replace_split(context, matrix, part);
  }
}

void MatrixDirections::replace_split(ops::Context& context, const Matrix& matrix,
                                     const Tensor& part) const {
  const ArenaScope scope(context.workspace());
  // 1. This rank's part, as rows of the whole.
  const std::int64_t width = matrix.split_columns ? matrix.rows : matrix.columns,
                     row_bytes = width * size_of(DType::float32);
  const auto rank = static_cast<std::size_t>(tensor_.rank());
  const Tensor whole = context.workspace().allocate(DType::float32,
                                                    {matrix.bounds.back() / row_bytes, width}),
               own =
                   whole.rows(matrix.bounds[rank] / row_bytes, matrix.bounds[rank + 1] / row_bytes);
  matrix.split_columns ? ops::transpose(context, part, own) : ops::copy(context, part, own);
  // 2. The parts of the other ranks.
  engine_->wait(engine_->all_gather(tensor_, static_cast<std::byte*>(whole.data), matrix.bounds,
                                    "trireme/optim/gather_matrix"));
  // 3. The same on every rank.
  matrix.rule->direction_of_matrix(context, options_, whole);
  matrix.split_columns ? ops::transpose(context, own, part) : ops::copy(context, own, part);
}

}  // namespace trireme::optim
