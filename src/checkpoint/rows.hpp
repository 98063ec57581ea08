#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// The box of the global tensor, in file order, that rows [row_begin, row_end) are: used by writing and reading alike. A tensor of one
/// dimension is one row.
struct Box {
  std::vector<std::int64_t> start, count;
};
Box box_of_rows(const parallel::ParameterSpec& spec, std::int64_t row_begin, std::int64_t row_end);

/// Turns whole rows: memory order to file order, and back. `in` and `out` do not overlap.
void to_file_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in, float* out);
void to_memory_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in, float* out);

/// Rows that fit the staging buffer (at least one).
std::int64_t rows_a_round(const parallel::ParameterSpec& spec);

}  // namespace trireme::checkpoint
