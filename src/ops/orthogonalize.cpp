// SPDX-License-Identifier: Apache-2.0
//
// The orthogonalization of a matrix by Newton-Schulz's iteration, from products of linear layers.
// Called by the update rule Muon (src/optim/rules/muon.cpp).
#include "trireme/ops/orthogonalize.hpp"

#include <algorithm>

#include "trireme/base/expect.hpp"
#include "trireme/kernels/update/matrix_norm.hpp"
#include "trireme/ops/elementwise.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/ops/transpose.hpp"

namespace trireme::ops {
namespace {

constexpr float norm_floor = 1e-7f;

/// Enqueues y (dtype of y) = matrix / max(norm, norm_floor).
void normalize(Context& context, const Tensor& matrix, const Tensor& y) {
  const ArenaScope scope(context.workspace());
  const std::int64_t rows = matrix.shape[0];
  const Tensor sums = context.workspace().allocate(DType::float64, {rows}),
               norm = context.workspace().allocate(DType::float32, {1});
  if (context.counts_only("matrix_norm", 2 * matrix.bytes() + y.bytes())) return;
  kernels::matrix_norm(context.stream(), matrix.as<float>(), rows, matrix.shape[1], norm_floor,
                       sums.as<double>(), norm.as<float>());
  const auto divide = [&]<class T>(T* to) {
    kernels::divide_by_norm(context.stream(), matrix.elements(), matrix.as<float>(),
                            norm.as<float>(), to);
  };
  y.dtype == DType::float32 ? divide(y.as<float>()) : divide(y.as<BFloat16>());
}

/// Enqueues the steps on x [rows, columns] with rows <= columns.
void iterate(Context& context, const Tensor& x) {
  const std::int64_t rows = x.shape[0], columns = x.shape[1];
  Arena& workspace = context.workspace();
  const ArenaScope scope(workspace);
  const Tensor gram = workspace.allocate(x.dtype, {rows, rows}),
               square = workspace.allocate(DType::float32, {rows, rows}),
               factor = workspace.allocate(x.dtype, {rows, rows}),
               product = workspace.allocate(DType::float32, {rows, columns});
  const Linear with_itself{
      .rows = rows, .in = columns, .out = rows, .dtype = x.dtype, .fixed_algorithm = true};
  // The square of the Gram matrix, and the factor times x, take their second operand as [in, out].
  Linear squared{.rows = rows,
                 .in = rows,
                 .out = rows,
                 .order = MatrixOrder::in_out,
                 .dtype = x.dtype,
                 .float32_result = true,
                 .fixed_algorithm = true},
      applied = squared;
  applied.out = columns;
  const auto [a, b, c] = newton_schulz;
  for (int step = 0; step < newton_schulz_steps; ++step) {
    linear_forward(context, with_itself, x, {.value = x}, {}, gram);
    linear_forward(context, squared, gram, {.value = gram}, {}, square);
    weighted_sum(context, b, gram, c, square, factor);
    linear_forward(context, applied, factor, {.value = x}, {}, product);
    weighted_sum(context, a, x, 1, product, x);
  }
}

}  // namespace

double orthogonalize_flops(std::int64_t rows, std::int64_t columns) {
  const auto shorter = static_cast<double>(std::min(rows, columns)),
             longer = static_cast<double>(std::max(rows, columns));
  return newton_schulz_steps * 2 * shorter * shorter * (2 * longer + shorter);
}

void orthogonalize(Context& context, const Tensor& matrix, DType dtype) {
  TRIREME_EXPECT(matrix.shape.rank() == 2 && matrix.dtype == DType::float32 &&
                 (dtype == DType::float32 || dtype == DType::bfloat16));
  const std::int64_t rows = matrix.shape[0], columns = matrix.shape[1];
  const ArenaScope scope(context.workspace());
  const Tensor x = context.workspace().allocate(dtype, matrix.shape);
  normalize(context, matrix, x);
  if (rows <= columns) {
    iterate(context, x);
  } else {
    const Tensor wide = context.workspace().allocate(dtype, {columns, rows});
    transpose(context, x, wide);
    iterate(context, wide);
    transpose(context, wide, x);
  }
  cast(context, x, matrix);
}

}  // namespace trireme::ops
