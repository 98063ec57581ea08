// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "trireme/tensor/tensor.hpp"

namespace trireme::data {

/// Form of one sample: what a reader allocates for it.
struct SampleInfo {
  /// Type of the input. Images: uint8, uint16, float16 or float32; tokens: int32.
  DType dtype = DType::uint8;
  /// [height, width, channels] or [context]. Encoded images have any size: [0, 0, channels].
  Shape input;
  /// [] is one label, [context] one for each token, [n] a vector of n values; maps: [height, width]
  /// or [height, width, components].
  Shape labels;
  DType label_type = DType::int32;  ///< vectors and fields: float32, or float64 (TargetUse::exact)
  std::int64_t input_bytes() const { return input.elements() * size_of(dtype); }
};

/// The checksums in a shard: an XXH3 for each block of adjacent rows. A row is an image with its
/// label or target, or a token.
struct ShardChecksums {
  std::int64_t block = 1;  ///< rows a checksum
  std::vector<std::uint64_t> values;
};

/// The blocks [first, end) of a shard; those past its last one are ignored.
struct BlockRange {
  std::int64_t first = 0, end = std::numeric_limits<std::int64_t>::max();
};

/// The samples of one shard, for random access. There is one implementation for each kind of shard
/// (docs/guides/add_a_dataset_format.md). All functions are thread-safe.
class SampleSource {
 public:
  virtual ~SampleSource() = default;
  /// Returns the form of every sample.
  virtual const SampleInfo& info() const = 0;
  /// Returns the number of samples.
  virtual std::int64_t size() const = 0;
  /// Returns the bytes that read() copies as the input of sample `index`: info().input_bytes(), or
  /// the length of the file of an encoded image.
  virtual std::int64_t sample_bytes(std::int64_t index) const = 0;
  /// Copies sample `index` (0 .. size() - 1): sample_bytes() bytes, and info().labels.elements()
  /// labels of info().label_type. Either pointer may be null. Throws InputError with file and
  /// sample if the sample cannot be used, Failure if the disk fails.
  virtual void read(std::int64_t index, std::byte* input, void* labels) const = 0;
  /// Asks the system to read the inputs of `count` adjacent samples into the page cache soon. Does
  /// not wait; errors are ignored, since read() finds them again.
  virtual void read_ahead(std::int64_t first, std::int64_t count) const = 0;
  /// Reads every row of some blocks. Compares them with `checksums` (null: there are none, and all
  /// rows are one block), then checks that each value is allowed. Returns "" or the first block
  /// that differs. Throws InputError for a value that is not allowed, or a shard that cannot be
  /// read.
  virtual std::string verify(const ShardChecksums* checksums, BlockRange blocks) const = 0;
};

}  // namespace trireme::data
