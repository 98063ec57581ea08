#include "rows.hpp"

#include <algorithm>

namespace trireme::checkpoint {
namespace {

// Bounds the memory that a checkpoint takes beside the tensors, and keeps each transfer far below MPI's 2 GiB.
constexpr std::int64_t staging_bytes = std::int64_t{64} << 20;

// [rows][a][b] -> [rows][b][a]
void transpose_rows(std::int64_t rows, std::int64_t a, std::int64_t b, const float* in, float* out) {
  for (std::int64_t row = 0; row < rows; ++row, in += a * b, out += a * b) {
    for (std::int64_t i = 0; i < a; ++i) {
      for (std::int64_t j = 0; j < b; ++j) out[j * a + i] = in[i * b + j];
    }
  }
}

}  // namespace

Box box_of_rows(const parallel::ParameterSpec& spec, std::int64_t row_begin, std::int64_t row_end) {
  Box box{std::vector<std::int64_t>(static_cast<std::size_t>(spec.shape.rank()), 0), {spec.shape.begin(), spec.shape.end()}};
  if (spec.shape.rank() > 1) {
    box.start[0] = row_begin;
    box.count[0] = row_end - row_begin;
  } else if (spec.shape.rank() == 1 && row_begin == row_end) {
    box.count[0] = 0;
  }
  return box;
}

void to_file_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in, float* out) {
  if (spec.inner == parallel::InnerOrder::plain) {
    std::copy_n(in, rows * spec.row_elements(), out);
  } else {
    transpose_rows(rows, spec.shape[2] * spec.shape[3], spec.shape[1], in, out);
  }
}

void to_memory_order(const parallel::ParameterSpec& spec, std::int64_t rows, const float* in, float* out) {
  if (spec.inner == parallel::InnerOrder::plain) {
    std::copy_n(in, rows * spec.row_elements(), out);
  } else {
    transpose_rows(rows, spec.shape[1], spec.shape[2] * spec.shape[3], in, out);
  }
}

std::int64_t rows_a_round(const parallel::ParameterSpec& spec) {
  return std::max<std::int64_t>(1, staging_bytes / (spec.row_elements() * static_cast<std::int64_t>(sizeof(float))));
}

}  // namespace trireme::checkpoint
