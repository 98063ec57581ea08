#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/ops/update.hpp"
#include "trireme/parallel/parameter.hpp"

namespace trireme::parallel {

/// Where each parameter lies in the flat buffers. Blocks stand in the order in which backward
/// finishes them (last block first), so the first bucket is the first to be ready; tied tensors,
/// which live through a whole backward, stand behind all others. Every tensor is contiguous and
/// starts at a multiple of 16 elements (the gaps stay 0), joined ones directly behind the one
/// before. Within a bucket running statistics stand behind all weights.
///
/// Beside the float32 buffers, which count in elements, there is the layout of the working weights,
/// which ops read and which counts in bytes: the same order, each tensor in its own type, starts at
/// multiples of 64 bytes. With compute float32 it is the float32 layout.
class FlatLayout {
 public:
  struct FlatTensor {
    std::int64_t offset = 0;  ///< elements from the start of the flat buffer
    std::int64_t elements = 0;
    std::int64_t working_begin = 0;  ///< bytes from the start of the working weights
    DType type = DType::float32;  ///< of the working weights: the compute type where the tensor has
                                  ///< a compute copy, else float32
    int block = 0, bucket = 0;
  };
  /// A range of the flat buffer that is reduced and gathered as a whole, ready when backward of
  /// `ready_block` is done.
  struct Bucket {
    std::int64_t begin = 0, end = 0;  ///< elements
    std::int64_t statistics_begin =
        0;  ///< from there on it holds statistics; the end where it holds none
    std::int64_t working_begin = 0, working_end = 0;  ///< bytes
    int ready_block = 0;
    bool tied = false;  ///< holds one tied tensor, and nothing else
    std::int64_t elements() const { return end - begin; }
    std::int64_t working_bytes() const { return working_end - working_begin; }
  };

  FlatLayout() = default;
  /// `compute`: type of the working weights that have a compute copy (float32, bfloat16, float16).
  /// A bucket is closed at the first end of a block at which it holds `bucket_bytes` (float32) or
  /// more, and where a chunk of blocks begins (`chunk_begins`: first block of each chunk that this
  /// rank holds): chunks go backward at different times. A tied tensor has a bucket of its own,
  /// ready with its owner's block.
  FlatLayout(const ParameterList& list, std::int64_t bucket_bytes, DType compute,
             std::span<const int> chunk_begins = {});

  std::int64_t elements() const { return elements_; }
  std::int64_t working_bytes() const { return working_bytes_; }
  DType compute_type() const { return compute_; }
  const FlatTensor& tensor(ParameterId id) const {
    return tensors_[static_cast<std::size_t>(id.index)];
  }
  const std::vector<FlatTensor>& tensors() const { return tensors_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  /// The bucket that holds a block's parameters (tied ones apart); -1: it has none, or is not here.
  int bucket_of(int block) const {
    const auto index = static_cast<std::size_t>(block);
    return index < bucket_of_.size() ? bucket_of_[index] : -1;
  }
  /// All atoms in flat order.
  const std::vector<ops::FlatRow>& rows() const { return rows_; }
  /// The cuts of a bucket into `shards` parts, each at an atom's boundary, as even as that allows:
  /// shards + 1 offsets, in elements.
  std::vector<std::int64_t> shard_bounds(const Bucket& bucket, int shards) const;
  /// The same cuts in the working weights, in bytes.
  std::vector<std::int64_t> working_bounds(const Bucket& bucket, int shards) const;

 private:
  void close_buckets(const ParameterList& list, std::span<const std::size_t> order,
                     std::int64_t bucket_bytes, std::span<const int> chunk_begins);

  std::vector<FlatTensor> tensors_;
  std::vector<Bucket> buckets_;
  std::vector<int> bucket_of_;
  std::vector<ops::FlatRow> rows_;
  std::int64_t elements_ = 0, working_bytes_ = 0;
  DType compute_ = DType::float32;
};

}  // namespace trireme::parallel
