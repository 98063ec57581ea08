// SPDX-License-Identifier: Apache-2.0
//
// Token and position embeddings: checks shapes, counts bytes and launches the kernels. Called by
// the language models.

#include "trireme/ops/embedding.hpp"

#include "trireme/kernels/embedding.hpp"
#include "trireme/ops/element_type.hpp"

namespace trireme::ops {
namespace {

/// Returns whether t is a matrix [rows, width] on the context's device. Leading dimensions count as
/// one.
bool is_matrix(const Context& context, const Tensor& t, std::int64_t rows, std::int64_t width) {
  return t.defined() && t.shape.back() == width && t.elements() == rows * width &&
         t.device == context.stream().device.kind;
}

kernels::EmbeddingShape shape_of([[maybe_unused]] const Context& context, const Tensor& tokens,
                                 const Tensor& table, std::int64_t first,
                                 [[maybe_unused]] const Tensor& y) {
  TRIREME_EXPECT(tokens.defined() && tokens.dtype == DType::int32 &&
                 tokens.device == context.stream().device.kind);
  TRIREME_EXPECT(table.shape.rank() == 2 &&
                 is_matrix(context, table, table.shape[0], table.shape[1]));
  TRIREME_EXPECT(is_matrix(context, y, tokens.elements(), table.shape[1]) &&
                 is_compute_type(y.dtype));
  return {tokens.elements(), table.shape[0], table.shape[1], first};
}

kernels::PositionShape shape_of([[maybe_unused]] const Context& context, const Tensor& table,
                                std::int64_t first_row, const Tensor& y) {
  TRIREME_EXPECT(table.shape.rank() == 2 &&
                 is_matrix(context, table, table.shape[0], table.shape[1]));
  const std::int64_t rows = y.elements() / table.shape[1];
  TRIREME_EXPECT(is_matrix(context, y, rows, table.shape[1]) && is_compute_type(y.dtype) &&
                 first_row >= 0);
  return {rows, table.shape[1], table.shape[0], first_row};
}

std::int64_t gradient_bytes(const Tensor& dtable, Write write) {
  return dtable.bytes() * (write == Write::add ? 2 : 1);
}

}  // namespace

void embedding_forward(Context& context, const Tensor& tokens, const Tensor& table,
                       std::int64_t first, const Tensor& y) {
  const kernels::EmbeddingShape shape = shape_of(context, tokens, table, first, y);
  TRIREME_EXPECT(table.dtype == y.dtype);
  if (context.counts_only("embedding_forward", tokens.bytes() + 2 * y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::embedding_forward(context.stream(), shape, tokens.as<std::int32_t>(), table.as<T>(),
                               y.as<T>());
  });
}

void embedding_backward(Context& context, const Tensor& tokens, const Tensor& dy,
                        std::int64_t first, const Tensor& dtable, Write write) {
  const kernels::EmbeddingShape shape = shape_of(context, tokens, dtable, first, dy);
  TRIREME_EXPECT(dtable.dtype == DType::float32);
  context.count("embedding_backward", tokens.bytes() + dy.bytes() + gradient_bytes(dtable, write));
  // Workspace of the sort by token: the begin of each token's list, the sorted places, and partial
  // sums of long lists.
  const ArenaScope scope(context.workspace());
  const Tensor begins = context.workspace().allocate(DType::int32, {shape.table_rows + 1});
  const Tensor occurrence_memory = context.workspace().allocate(DType::int32, {3, shape.count});
  const Tensor partials = context.workspace().allocate(
      DType::float32, {kernels::embedding_run_count(shape), shape.width});
  if (context.meta()) return;
  auto* const occurrence_data = occurrence_memory.as<std::int32_t>();
  const kernels::TokenOccurrences occurrences{
      begins.as<std::int32_t>(), occurrence_data, occurrence_data + shape.count,
      occurrence_data + 2 * shape.count, partials.as<float>()};
  with_element_type(dy.dtype, [&]<class T>(T) {
    kernels::embedding_backward(context.stream(), shape, tokens.as<std::int32_t>(), dy.as<T>(),
                                occurrences, write == Write::add, dtable.as<float>());
  });
}

void add_positions(Context& context, const Tensor& table, std::int64_t first_row, const Tensor& y) {
  const kernels::PositionShape shape = shape_of(context, table, first_row, y);
  TRIREME_EXPECT(table.dtype == y.dtype);
  if (context.counts_only("add_positions", table.bytes() + 2 * y.bytes())) return;
  with_element_type(y.dtype, [&]<class T>(T) {
    kernels::add_positions(context.stream(), shape, table.as<T>(), y.as<T>());
  });
}

void positions_backward(Context& context, const Tensor& dy, std::int64_t first_row,
                        const Tensor& dtable, Write write) {
  const kernels::PositionShape shape = shape_of(context, dtable, first_row, dy);
  TRIREME_EXPECT(dtable.dtype == DType::float32);
  if (context.counts_only("positions_backward", dy.bytes() + gradient_bytes(dtable, write))) return;
  with_element_type(dy.dtype, [&]<class T>(T) {
    kernels::positions_backward(context.stream(), shape, dy.as<T>(), write == Write::add,
                                dtable.as<float>());
  });
}

}  // namespace trireme::ops
