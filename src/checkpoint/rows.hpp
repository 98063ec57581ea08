#pragma once

#include <cstdint>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/hdf5.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// The boxes of the global tensor, in file order, that local rows [row_begin, row_end) of a part
/// are: a box a segment. Used by writing, reading and the check of coverage alike. Their union in
/// row-major order is the order in which the local rows stand in memory (plain inner order).
std::vector<io::Hdf5Box> boxes_of_rows(const parallel::ParameterSpec& spec,
                                       const parallel::TensorPartition& partition,
                                       std::int64_t row_begin, std::int64_t row_end);

/// The part that a piece is of.
inline parallel::TensorPartition partition_of(const TensorSlice& slice) {
  return slice.partition == nullptr ? parallel::TensorPartition(*slice.spec) : *slice.partition;
}

/// How often elements of a tensor are held, as a sum over pieces (mod 2^64) by which ranks see
/// whether together they hold every element equally often. `hash` is the sum over the held elements
/// of a(row) b(column), where a(i) = H(i + 1) - H(i), H a random function, and b likewise: over a
/// box both sums telescope, so a box costs four calls. Elements held d(row, column) times too often
/// change it by the sum of d a b. For given a that is a sum of random numbers H(column) with
/// factors of which not all are 0 unless all sums over rows are, and those are again sums of random
/// numbers: they agree by accident in about 1 case of 2^59 (of 2^64, less what factors of 2 in a
/// product cost).
struct Coverage {
  std::uint64_t elements = 0, hash = 0;
};
Coverage coverage_of(const parallel::TensorPartition& partition, std::int64_t row_begin,
                     std::int64_t row_end);
/// Whether `sum`, over all ranks, is that of a tensor every element of which is held `times` times;
/// 0: of no such tensor.
std::uint64_t count_covers(const parallel::ParameterSpec& spec, const Coverage& sum);

/// Turns whole rows: memory order to file order, and back. `in` and `out` do not overlap.
void to_file_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                   float* out);
void to_memory_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                     float* out);

/// Rows of so many elements that fit the staging buffer (at least one).
std::int64_t rows_per_round(std::int64_t row_elements);

}  // namespace trireme::checkpoint
