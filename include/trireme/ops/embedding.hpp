#pragma once

#include "trireme/ops/context.hpp"

namespace trireme::ops {

/// y [n, width] (table's dtype) = rows of table [table_rows, width] named by tokens int32 [n]. The
/// table holds the tokens [first, first + table_rows): any other, another rank's, gives 0.
void embedding_forward(Context&, const Tensor& tokens, const Tensor& table, std::int64_t first,
                       const Tensor& y);
/// dtable (float32 [table_rows, width]) = or += the sums of dy [n, width] by token. Each row of the
/// table is summed in ascending n: the same bits at any number of threads.
void embedding_backward(Context&, const Tensor& tokens, const Tensor& dy, std::int64_t first,
                        const Tensor& dtable, Write);

/// Learned positions: row i of y [n, width] += row (first_row + i) % context of table [context,
/// width], in y's dtype.
void add_positions(Context&, const Tensor& table, std::int64_t first_row, const Tensor& y);
/// dtable (float32 [context, width]) = or += the sums of the rows of dy [n, width] by position,
/// rows ascending.
void positions_backward(Context&, const Tensor& dy, std::int64_t first_row, const Tensor& dtable,
                        Write);

}  // namespace trireme::ops
