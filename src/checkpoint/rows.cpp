// SPDX-License-Identifier: Apache-2.0
//
// Geometry of rows: hyperslabs of a partition, the check that all ranks together cover a tensor,
// and the conversion between memory order and file order.
#include "rows.hpp"

#include <algorithm>

#include "trireme/base/philox.hpp"

namespace trireme::checkpoint {
namespace {

// The size of one transfer. Bounds the memory beside the tensors and stays far below MPI's limit of
// 2 GiB.
constexpr std::int64_t staging_bytes = std::int64_t{64} << 20;

// Transposes each row: [rows][a][b] -> [rows][b][a].
void transpose_rows(std::int64_t rows, std::int64_t a, std::int64_t b, const float* in,
                    float* out) {
  for (std::int64_t row = 0; row < rows; ++row, in += a * b, out += a * b) {
    for (std::int64_t i = 0; i < a; ++i) {
      for (std::int64_t j = 0; j < b; ++j) out[j * a + i] = in[i * b + j];
    }
  }
}

}  // namespace

std::vector<io::Hdf5Box> boxes_of_rows(const parallel::ParameterSpec& spec,
                                       const parallel::TensorPartition& partition,
                                       std::int64_t row_begin, std::int64_t row_end) {
  std::vector<io::Hdf5Box> boxes;
  const auto rank = static_cast<std::size_t>(spec.shape.rank());
  for (const parallel::TensorPartition::Segment& rows :
       partition.row_segments(row_begin, row_end)) {
    for (const parallel::TensorPartition::Segment& columns : partition.segments()) {
      io::Hdf5Box box{std::vector<std::int64_t>(rank, 0), {spec.shape.begin(), spec.shape.end()}};
      if (rank > 1) {
        box.start[0] = rows.file;
        box.count[0] = rows.count;
      }
      // Only tensors of one or two dimensions are split along columns: their columns are the last
      // dimension.
      if (columns.count != spec.row_elements()) {
        box.start[rank - 1] = columns.file;
        box.count[rank - 1] = columns.count;
      }
      boxes.push_back(std::move(box));
    }
  }
  return boxes;
}

Coverage coverage_of(const parallel::TensorPartition& partition, std::int64_t row_begin,
                     std::int64_t row_end) {
  // H of the description in rows.hpp, one function for rows and one for columns.
  const auto random = [&](const char* purpose, std::int64_t place) {
    return mix64(static_cast<std::uint64_t>(place) ^ random_key(0, purpose));
  };
  // The telescoped sum of H(i + 1) - H(i) over [begin, end).
  const auto between = [&](const char* purpose, std::int64_t begin, std::int64_t end) {
    return random(purpose, end) - random(purpose, begin);
  };
  const auto sum_of = [&](const char* purpose,
                          const std::vector<parallel::TensorPartition::Segment>& segments) {
    std::uint64_t sum = 0;
    for (const parallel::TensorPartition::Segment& segment : segments)
      sum += between(purpose, segment.file, segment.file + segment.count);
    return sum;
  };
  return {static_cast<std::uint64_t>((row_end - row_begin) * partition.row_elements()),
          sum_of("rows", partition.row_segments(row_begin, row_end)) *
              sum_of("columns", partition.segments())};
}

std::uint64_t count_covers(const parallel::ParameterSpec& spec, const Coverage& sum) {
  const Coverage whole = coverage_of(parallel::TensorPartition(spec), 0, spec.rows());
  const std::uint64_t times = sum.elements / whole.elements;
  return sum.elements == times * whole.elements && sum.hash == times * whole.hash ? times : 0;
}

void to_file_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                   float* out) {
  if (spec.inner == parallel::InnerOrder::plain) {
    std::copy_n(in, rows * spec.row_elements(), out);
  } else {
    transpose_rows(rows, spec.shape[2] * spec.shape[3], spec.shape[1], in, out);
  }
}

void to_memory_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in,
                     float* out) {
  if (spec.inner == parallel::InnerOrder::plain) {
    std::copy_n(in, rows * spec.row_elements(), out);
  } else {
    transpose_rows(rows, spec.shape[1], spec.shape[2] * spec.shape[3], in, out);
  }
}

std::int64_t rows_per_round(std::int64_t row_elements) {
  return std::max<std::int64_t>(1, staging_bytes / (std::max<std::int64_t>(1, row_elements) *
                                                    static_cast<std::int64_t>(sizeof(float))));
}

}  // namespace trireme::checkpoint
