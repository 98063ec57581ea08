// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::checkpoint {

/// Returns the boxes of the global tensor, in file order, that local rows [row_begin, row_end) of a
/// partition cover: one box for each segment. If the inner order is plain, the row-major order of
/// their union is the order of the local rows in memory.
std::vector<io::Hdf5Box> boxes_of_rows(const parallel::ParameterSpec& spec,
                                       const parallel::TensorPartition& partition,
                                       std::int64_t row_begin, std::int64_t row_end);

/// Returns the partition of a slice; the whole tensor if the slice names none.
inline parallel::TensorPartition partition_of(const TensorSlice& slice) {
  return slice.partition == nullptr ? parallel::TensorPartition(*slice.spec) : *slice.partition;
}

/// Counts how often the elements of a tensor are held, summed over slices and ranks (modulo 2^64).
/// count_covers() finds from the two sums whether every element is held equally often.
///
/// `hash` is the sum over the held elements of a(row) b(column). Here a(i) = H(i + 1) - H(i) with a
/// random function H, and b likewise with another one. Over a box both sums telescope, so one box
/// costs four calls of H.
///
/// An uneven cover has the hash of an even one in about 1 case of 2^59. If element (r, c) is held
/// d(r, c) times too often, the hash is off by the sum of d(r, c) a(r) b(c). That is a sum of
/// random numbers, which is rarely 0.
struct Coverage {
  std::uint64_t elements = 0, hash = 0;
};
/// Returns the coverage of local rows [row_begin, row_end) of a partition.
Coverage coverage_of(const parallel::TensorPartition& partition, std::int64_t row_begin,
                     std::int64_t row_end);
/// Returns how many times every element is held, if `sum` (over all ranks) is the coverage of a
/// tensor that is held evenly; 0 if it is not.
std::uint64_t count_covers(const parallel::ParameterSpec& spec, const Coverage& sum);

/// Converts whole rows from memory order to file order, and back. `in` and `out` must not overlap.
void to_file_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                   float* out);
void to_memory_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                     float* out);

/// Returns how many rows of `row_elements` fit into one transfer of 64 MiB; at least one.
std::int64_t rows_per_round(std::int64_t row_elements);

}  // namespace trireme::checkpoint
