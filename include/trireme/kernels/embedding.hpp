#pragma once

#include <cstdint>

#include "trireme/device/device.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::kernels {

/// `count` tokens and a table of `table_rows` rows of `width` numbers for the tokens from `first`
/// on.
struct EmbeddingShape {
  std::int64_t count = 0, table_rows = 0, width = 0, first_token = 0;
};

/// y [count, width] = the tokens' rows of table; 0 for a token that is not in the table.
template <class T>
void embedding_forward(const Stream&, const EmbeddingShape&, const std::int32_t* tokens,
                       const T* table, T* y);

/// Places of a token that a device adds up at once.
constexpr std::int64_t occurrences_per_run = 32;
/// Blocks of as many places.
std::int64_t embedding_run_count(const EmbeddingShape&);
/// Workspace.
struct TokenOccurrences {
  std::int32_t* first = nullptr;  ///< [table_rows + 1]. Host: each row's first place; -1: none.
                                  ///< Device: where its places begin in `sorted`
  std::int32_t* next = nullptr;   ///< [count]. Host: for each place the next one of the same token;
                                  ///< -1: none. Device: places by row, in any order
  std::int32_t* index_in_row = nullptr;  ///< [count], device
  std::int32_t* sorted = nullptr;        ///< [count], device: places by row, ascending
  float* partials = nullptr;             ///< [embedding_runs, width], device
};
/// dtable [table_rows, width] = or += (add) the sums of dy [count, width] by token, places
/// ascending; on a device runs of run_places places of a token are summed first.
template <class T>
void embedding_backward(const Stream&, const EmbeddingShape&, const std::int32_t* tokens,
                        const T* dy, const TokenOccurrences&, bool add, float* dtable);

/// Row i of a matrix [rows, width] has position (first_row + i) % context.
struct PositionShape {
  std::int64_t rows = 0, width = 0, context = 0, first_row = 0;
};
/// y [rows, width] += the positions' rows of table [context, width].
template <class T>
void add_positions(const Stream&, const PositionShape&, const T* table, T* y);
/// dtable [context, width] = or += (add) the sums of dy [rows, width] by position, rows ascending.
template <class T>
void positions_backward(const Stream&, const PositionShape&, const T* dy, bool add, float* dtable);

}  // namespace trireme::kernels
