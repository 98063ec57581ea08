// SPDX-License-Identifier: Apache-2.0
//
// HostRows: rows of slices for the host. Rows in host memory are used in place, rows in device
// memory pass through a buffer.
#include "host_rows.hpp"

#include "rows.hpp"
#include "trireme/device/stream.hpp"

namespace trireme::checkpoint {
namespace {

/// Returns whether a slice is in host memory.
bool is_on_host(const TensorSlice& slice) { return in_host_memory(device_of(slice.data).kind); }

/// Returns a pointer to the first element of local row `row`.
float* row_pointer(const TensorSlice& slice, std::int64_t row) {
  return slice.data + (row - slice.row_begin) * partition_of(slice).row_elements();
}

std::size_t bytes_of(const TensorSlice& slice, std::int64_t rows) {
  return static_cast<std::size_t>(rows * partition_of(slice).row_elements()) * sizeof(float);
}

}  // namespace

HostRows::HostRows(std::span<const TensorSlice> slices) {
  for (const TensorSlice& slice : slices) synchronize(slice.stream);
}

std::int64_t HostRows::max_rows_per_call(const TensorSlice& slice) {
  return is_on_host(slice) ? std::max<std::int64_t>(1, slice.row_end - slice.row_begin)
                           : rows_per_round(partition_of(slice).row_elements());
}

const float* HostRows::read(const TensorSlice& slice, std::int64_t begin, std::int64_t end) {
  float* rows = begin_write(slice, begin, end);
  if (!is_on_host(slice))
    copy_bytes(slice.stream, rows, row_pointer(slice, begin), bytes_of(slice, end - begin));
  return rows;
}

float* HostRows::begin_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end) {
  TRIREME_EXPECT(slice.row_begin <= begin && begin <= end && end <= slice.row_end);
  if (is_on_host(slice)) return row_pointer(slice, begin);
  const std::int64_t elements = (end - begin) * partition_of(slice).row_elements();
  if (elements > capacity_) {
    buffer_.reset();  // free the old buffer first
    buffer_ = std::make_unique_for_overwrite<float[]>(static_cast<std::size_t>(elements));
    capacity_ = elements;
  }
  return buffer_.get();
}

void HostRows::end_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end) {
  if (!is_on_host(slice))
    copy_bytes(slice.stream, row_pointer(slice, begin), buffer_.get(),
               bytes_of(slice, end - begin));
}

std::uint64_t digest_of(HostRows& rows, const TensorSlice& slice) {
  const parallel::TensorPartition partition = partition_of(slice);
  std::uint64_t sum = 0;
  for_each_round(
      slice, HostRows::max_rows_per_call(slice), [&](std::int64_t begin, std::int64_t end) {
        sum += digest_rows(*slice.spec, partition, begin, end, rows.read(slice, begin, end));
      });
  return sum;
}

}  // namespace trireme::checkpoint
