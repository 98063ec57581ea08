#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::parallel {

/// Into how many chunks layers cut their rows, so that one chunk is sent while the product of
/// another is made: as many as the bounds allow.
struct RowChunkLimits {
  /// The first chunk's product, or the last one's sum, has nothing beside it: a quarter of them.
  /// More chunks win little and cost calls.
  int max_chunks = 4;
  /// A product of fewer rows reads its weight too often: at 256 it is 128 multiply-adds for each
  /// byte of a bfloat16 weight.
  std::int64_t min_rows = 256;
  /// Of a chunk's result. Its sum is then of 8 MiB, which is a matter of bandwidth and no more of
  /// latency also between GPUs of a node; and its product has 128 tiles of 128 x 128, one for each
  /// multiprocessor of a GPU.
  std::int64_t min_elements = std::int64_t{1} << 21;

  static constexpr int max_chunks_limit = 8;       ///< `most` may not be more
  static constexpr std::int64_t row_multiple = 8;  ///< a rank's rows of a chunk are a multiple of
                                                   ///< this, which products by tensor cores ask for
};

/// One of the chunks of a matrix's rows.
struct RowChunk {
  std::int64_t begin, end;            ///< among all rows
  std::int64_t held_begin, held_end;  ///< among those that this rank holds between parallel regions
  std::int64_t first_held;            ///< where these stand among all rows
  std::int64_t rows() const { return end - begin; }
};

/// The ranks that split a layer's tensors among them, as layers see them. Every call is collective
/// over the group. What begins with `begin_` asks the engine and goes on; its memory is the
/// engine's until wait(). The other calls are done when they return. With one rank nothing is sent.
class TensorGroup {
 public:
  /// A group of one.
  TensorGroup() = default;
  /// `order`: in which order sums are made. `sequence`: between parallel regions each rank holds
  /// only its part of the rows.
  TensorGroup(const comm::Communicator& group, comm::Engine& engine, comm::SumOrder order,
              bool sequence, const RowChunkLimits& limits = {});

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool sequence() const { return sequence_; }
  comm::SumOrder order() const { return order_; }
  /// Whether ranks hold parts of the rows between parallel regions.
  bool rows_are_split() const { return sequence_ && size() > 1; }

  /// Rows that this rank holds of `rows` between parallel regions: all of them, or with sequence
  /// parallelism its part of each chunk (rows divide by size()).
  std::int64_t rows_held(std::int64_t rows) const { return sequence_ ? rows / size() : rows; }
  /// Of [rows, columns]: a function of the two, of the group's size and of its cut alone, so the
  /// same on all ranks and on meta.
  int chunks(std::int64_t rows, std::int64_t columns) const;
  /// How many pieces of neighbouring rows a rank holds: of each chunk one where rows are split,
  /// else one.
  int row_ranges_held(std::int64_t rows, std::int64_t columns) const {
    return rows_are_split() ? chunks(rows, columns) : 1;
  }
  /// Chunk `number` of `chunks`.
  RowChunk chunk(int number, int chunks, std::int64_t rows) const;
  /// Which rank holds row `row`, as which of its rows. Where rows are not split, this one.
  struct RowLocation {
    int rank;
    std::int64_t row;
  };
  RowLocation locate_row(std::int64_t row, std::int64_t rows, std::int64_t columns) const;

  using Request = comm::Engine::Request;
  /// x (float32) = the sum over the group. `scratch`: as large under SumOrder::tree, else
  /// undefined.
  Request begin_all_reduce(const Tensor& x, const Tensor& scratch) const;
  /// part [rows / size, ..] (float32) = this rank's rows of the sum over the group, not of one, of
  /// `whole` [rows, ..] (float32; destroyed). `scratch`: as above, like `whole`.
  Request begin_reduce_scatter(const Tensor& whole, const Tensor& scratch,
                               const Tensor& part) const;
  /// all [size, ..] = each rank's `mine` [..] in rank order; any dtype.
  Request begin_gather(ops::Context&, const Tensor& mine, const Tensor& all) const;
  void wait(Request request) const;

  void all_reduce(ops::Context&, const Tensor& x) const;
  void gather(ops::Context&, const Tensor& mine, const Tensor& all) const;
  /// In the workspace, as large on every device, so that it is planned on meta.
  Tensor scratch(ops::Context&, const Tensor& like) const;

 private:
  /// Where the parts of `whole` of each rank begin and end, in units of `unit` bytes: the engine's
  /// until the request that takes them is done.
  std::span<const std::int64_t> even_bounds(const Tensor& whole, std::int64_t unit) const;

  comm::Communicator group_;
  comm::Engine* engine_ = nullptr;
  comm::SumOrder order_ = comm::SumOrder::library;
  bool sequence_ = false;
  RowChunkLimits limits_;
  // size() + 1 each, in turn. A layer has the chunks of a gather and of a sum under way at once,
  // and one more exchange beside them.
  static constexpr std::size_t max_requests = 2 * RowChunkLimits::max_chunks_limit + 1;
  mutable std::array<std::vector<std::int64_t>, max_requests> bounds_;
  mutable std::size_t next_bounds_ = 0;
};

}  // namespace trireme::parallel
