// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Provides rows of slices to the host. Rows in host memory are accessed in place. Rows in device
/// memory are copied through a buffer, which grows to the largest request.
class HostRows {
 public:
  /// Waits for the streams of all slices: earlier device work may still change the rows, even those
  /// in host memory.
  explicit HostRows(std::span<const TensorSlice> slices);

  /// Returns the number of rows to request in one call, so that the buffer stays below 64 MiB (or
  /// one row). All rows if no buffer is needed.
  static std::int64_t max_rows_per_call(const TensorSlice& slice);
  /// Returns local rows [begin, end) of a slice. The pointer is valid until the next call.
  const float* read(const TensorSlice& slice, std::int64_t begin, std::int64_t end);
  /// Returns memory for local rows [begin, end) of a slice. Write the rows there, then call
  /// end_write() with the same arguments, which copies them to the slice.
  float* begin_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end);
  void end_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end);

 private:
  std::unique_ptr<float[]> buffer_;
  std::int64_t capacity_ = 0;  ///< elements
};

/// Calls body(begin, end) for consecutive ranges of at most `step` rows of a slice.
template <class Body>
void for_each_round(const TensorSlice& slice, std::int64_t step, Body&& body) {
  for (std::int64_t begin = slice.row_begin; begin < slice.row_end; begin += step)
    body(begin, begin + std::min(step, slice.row_end - begin));
}

/// Returns the contribution of a slice to the digest of its tensor.
std::uint64_t digest_of(HostRows& rows, const TensorSlice& slice);

}  // namespace trireme::checkpoint
