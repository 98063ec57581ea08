#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>

#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Rows of pieces as the host reads and writes them: in place where they lie in its memory, else
/// through a buffer that grows to what is asked for at once.
class HostRows {
 public:
  /// The host waits for what the pieces' devices were given so far: it may still change them, also
  /// where they lie in host memory.
  explicit HostRows(std::span<const TensorSlice> slices);

  /// Of a piece, how many rows to ask for at once, so that memory beside it stays bounded: all
  /// where none is needed.
  static std::int64_t max_rows_per_call(const TensorSlice& slice);
  /// Local rows [begin, end) of a piece; good until the next call.
  const float* read(const TensorSlice& slice, std::int64_t begin, std::int64_t end);
  /// Where to write local rows [begin, end) of a piece, which are there when close() of the same
  /// returns.
  float* begin_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end);
  void end_write(const TensorSlice& slice, std::int64_t begin, std::int64_t end);

 private:
  std::unique_ptr<float[]> buffer_;
  std::int64_t capacity_ = 0;  ///< elements
};

/// Calls body(begin, end) for all rows of a piece, at most `step` at a time.
template <class Body>
void for_each_round(const TensorSlice& slice, std::int64_t step, Body&& body) {
  for (std::int64_t begin = slice.row_begin; begin < slice.row_end; begin += step)
    body(begin, begin + std::min(step, slice.row_end - begin));
}

/// What the rows of a piece add to its tensor's digest.
std::uint64_t digest_of(HostRows& rows, const TensorSlice& slice);

}  // namespace trireme::checkpoint
