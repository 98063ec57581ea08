// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::parallel {

/// Limits for the chunks into which a layer divides its rows, so that one chunk is sent while the
/// product of another is computed. TensorGroup::chunks() takes as many chunks as the limits allow.
struct RowChunkLimits {
  /// The first chunk's product, or the last chunk's sum, overlaps with nothing: one quarter with 4
  /// chunks. More chunks save little and cost calls.
  int max_chunks = 4;
  /// Minimum rows of a chunk. Products with fewer rows read their weight too often: 256 rows make
  /// 128 multiply-adds for each byte of a bfloat16 weight.
  std::int64_t min_rows = 256;
  /// Minimum elements of a chunk's result. Its sum (8 MiB) is then limited by bandwidth, not by
  /// latency, also between GPUs of a node. Its product has 128 tiles of 128 x 128, one for each
  /// multiprocessor of a GPU.
  std::int64_t min_elements = std::int64_t{1} << 21;

  static constexpr int max_chunks_limit = 8;  ///< upper bound of `max_chunks`
  /// The rows of a rank in a chunk are a multiple of this, as products on tensor cores require.
  static constexpr std::int64_t row_multiple = 8;
};

/// One chunk of the rows of a matrix.
struct RowChunk {
  std::int64_t begin, end;  ///< among all rows
  /// Among the rows that this rank holds between parallel regions.
  std::int64_t held_begin, held_end;
  std::int64_t first_held;  ///< index of these rows among all rows
  std::int64_t rows() const { return end - begin; }
};

/// The ranks that split the tensors of a layer, as layers use them. All calls are collective over
/// the group.
///
/// begin_* submit a request and return; the engine owns the memory until wait(). Other calls have
/// finished when they return. A group of one sends nothing.
class TensorGroup {
 public:
  /// A group of one.
  TensorGroup() = default;
  /// `order`: order of sums. `sequence`: sequence parallelism, in which each rank holds only its
  /// part of the rows between parallel regions.
  TensorGroup(const comm::Communicator& group, comm::Engine& engine, comm::SumOrder order,
              bool sequence, const RowChunkLimits& limits = {});

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool sequence() const { return sequence_; }
  comm::SumOrder order() const { return order_; }
  /// Returns whether ranks hold only parts of the rows between parallel regions.
  bool rows_are_split() const { return sequence_ && size() > 1; }

  /// Returns how many of `rows` rows this rank holds between parallel regions: all, or with
  /// sequence parallelism rows / size(), which must divide evenly.
  std::int64_t rows_held(std::int64_t rows) const { return sequence_ ? rows / size() : rows; }
  /// Returns the number of chunks of a [rows, columns] matrix. It depends only on the shape, the
  /// group size and the limits, so it is the same on all ranks and on meta. Under sequence
  /// parallelism the chunks also say which rows a rank holds, so all layers of a model cut its rows
  /// by the same columns: its width.
  int chunks(std::int64_t rows, std::int64_t columns) const;
  /// Returns the number of contiguous row ranges that a rank holds: one for each chunk with
  /// sequence parallelism, otherwise one.
  int row_ranges_held(std::int64_t rows, std::int64_t columns) const {
    return rows_are_split() ? chunks(rows, columns) : 1;
  }
  /// Returns chunk `number` of `chunks`.
  RowChunk chunk(int number, int chunks, std::int64_t rows) const;
  /// The rank that holds a row, and the index among its rows. Without sequence parallelism it is
  /// this rank.
  struct RowLocation {
    int rank;
    std::int64_t row;
  };
  RowLocation locate_row(std::int64_t row, std::int64_t rows, std::int64_t columns) const;

  using Request = comm::Engine::Request;
  /// Replaces x (float32) by its sum over the group. `scratch`: same size with SumOrder::tree,
  /// otherwise undefined.
  Request begin_all_reduce(const Tensor& x, const Tensor& scratch) const;
  /// Writes this rank's rows of the sum of `whole` [rows, ..] (float32; destroyed) to `part` [rows
  /// / size, ..]. `scratch`: like `whole` with SumOrder::tree, otherwise undefined. Not for a group
  /// of one.
  Request begin_reduce_scatter(const Tensor& whole, const Tensor& scratch,
                               const Tensor& part) const;
  /// Writes `mine` [..] of each rank to `all` [size, ..] in rank order; any type.
  Request begin_gather(ops::Context&, const Tensor& mine, const Tensor& all) const;
  void wait(Request request) const;

  void all_reduce(ops::Context&, const Tensor& x) const;
  void gather(ops::Context&, const Tensor& mine, const Tensor& all) const;
  /// Allocates scratch memory for a sum in the workspace (undefined if not needed). The size is the
  /// same on every device, so that the plan on meta is exact.
  Tensor scratch(ops::Context&, const Tensor& like) const;

 private:
  /// Returns the cuts of `whole` into equal parts, in units of `unit` bytes. They stay valid until
  /// the request that uses them is done.
  std::span<const std::int64_t> even_bounds(const Tensor& whole, std::int64_t unit) const;

  comm::Communicator group_;
  comm::Engine* engine_ = nullptr;
  comm::SumOrder order_ = comm::SumOrder::library;
  bool sequence_ = false;
  RowChunkLimits limits_;
  // A layer has the chunks of one gather and of one sum under way at the same time, and one more
  // request.
  static constexpr std::size_t max_requests = 2 * RowChunkLimits::max_chunks_limit + 1;
  // size() + 1 offsets each, used in turn.
  mutable std::array<std::vector<std::int64_t>, max_requests> bounds_;
  mutable std::size_t next_bounds_ = 0;
};

}  // namespace trireme::parallel
