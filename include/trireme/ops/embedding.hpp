// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// Enqueues y [n, width] (the table's dtype) = the rows of table [table_rows, width] that tokens
/// (int32 [n]) select. The table holds the tokens [first, first + table_rows). All others belong to
/// another tensor rank; their rows of y are 0.
void embedding_forward(Context&, const Tensor& tokens, const Tensor& table, std::int64_t first,
                       const Tensor& y);
/// Enqueues dtable (float32 [table_rows, width]) = or += the rows of dy [n, width] summed by token.
/// Each row of the table is summed in ascending n, so the bits do not depend on the number of
/// threads.
void embedding_backward(Context&, const Tensor& tokens, const Tensor& dy, std::int64_t first,
                        const Tensor& dtable, Write);

/// Enqueues learned positions: row i of y [n, width] += row (first_row + i) % context of table
/// [context, width], in y's dtype.
void add_positions(Context&, const Tensor& table, std::int64_t first_row, const Tensor& y);
/// Enqueues dtable (float32 [context, width]) = or += the rows of dy [n, width] summed by position,
/// in ascending order.
void positions_backward(Context&, const Tensor& dy, std::int64_t first_row, const Tensor& dtable,
                        Write);

}  // namespace trireme::ops
