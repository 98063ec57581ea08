// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// `count` tokens and a table of `table_rows` rows of `width` numbers. Row 0 belongs to token
/// `first`.
struct EmbeddingShape {
  std::int64_t count = 0, table_rows = 0, width = 0, first_token = 0;
};

/// y [count, width] = the tokens' rows of the table; zeros for a token outside of the table.
template <class T>
void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t* tokens,
                       const T* table, T* y);

/// Occurrences of one token that a device adds in one run.
constexpr std::int64_t occurrences_per_run = 32;
/// Returns the number of blocks of that many occurrences.
std::int64_t embedding_run_count(const EmbeddingShape&);
/// Workspace of embedding_backward(). Each entry of `tokens` is one occurrence of its token.
struct TokenOccurrences {
  /// [table_rows + 1]. Host: first occurrence of each row's token, -1 for none. Device: begin of
  /// each row in `sorted`
  std::int32_t* first = nullptr;
  /// [count]. Host: next occurrence of the same token, -1 for none. Device: occurrences grouped by
  /// row, in any order within a row
  std::int32_t* next = nullptr;
  /// [count], device: index of each occurrence within its row's group
  std::int32_t* index_in_row = nullptr;
  /// [count], device: occurrences grouped by row, ascending
  std::int32_t* sorted = nullptr;
  /// [embedding_run_count, width], device: sums of runs
  float* partials = nullptr;
};
/// dtable [table_rows, width] = or, if `add`, += the sums of the rows of dy [count, width] per
/// token, in ascending order.
/// A device adds runs of occurrences_per_run rows first.
template <class T>
void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t* tokens,
                        const T* dy, const TokenOccurrences&, bool add, float* dtable);

/// Row i of a matrix [rows, width] has position (first_row + i) % context.
struct PositionShape {
  std::int64_t rows = 0, width = 0, context = 0, first_row = 0;
};
/// y [rows, width] += the table rows [context, width] of the positions.
template <class T>
void add_positions(const Stream&, const PositionShape&, const T* table, T* y);
/// dtable [context, width] = or, if `add`, += the sums of the rows of dy [rows, width] per
/// position, in ascending order.
template <class T>
void positions_backward(const Stream&, const PositionShape&, const T* dy, bool add, float* dtable);

}  // namespace trireme::kernels
