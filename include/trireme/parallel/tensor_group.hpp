#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::parallel {

/// The ranks that split a layer's tensors among them, as layers see them. Every call is collective over the group and done when it returns;
/// with one rank nothing is sent.
class TensorGroup {
 public:
  /// A group of one.
  TensorGroup() = default;
  /// `order`: in which order sums are made. `sequence`: between parallel regions each rank holds only its part of the rows.
  TensorGroup(const comm::Communicator& group, comm::Engine& engine, comm::SumOrder order, bool sequence);

  int rank() const { return group_.rank(); }
  int size() const { return group_.size(); }
  bool sequence() const { return sequence_; }
  /// Rows that this rank holds of `rows` between parallel regions: all of them, or with sequence parallelism its part (rows divide by size()).
  std::int64_t rows_held(std::int64_t rows) const { return sequence_ ? rows / size() : rows; }
  std::int64_t first_row_held(std::int64_t rows) const { return sequence_ ? rows / size() * rank() : 0; }

  /// x (float32) = the sum over the group. Temporaries from the context's workspace.
  void all_reduce(ops::Context&, const Tensor& x) const;
  /// whole [rows, ..] = the parts [rows / size, ..] in rank order; any dtype.
  void gather_rows(ops::Context&, const Tensor& part, const Tensor& whole) const;
  /// part [rows / size, ..] (float32) = this rank's rows of the sum over the group of `whole` [rows, ..] (float32; destroyed).
  void reduce_scatter_rows(ops::Context&, const Tensor& whole, const Tensor& part) const;
  /// all [size, ..] = each rank's `mine` [..] in rank order; any dtype.
  void gather(ops::Context&, const Tensor& mine, const Tensor& all) const;

 private:
  /// Where the parts of `whole` of each rank begin and end, in units of `unit` bytes.
  std::span<const std::int64_t> even_bounds(const Tensor& whole, std::int64_t unit) const;
  Tensor scratch(ops::Context&, const Tensor& like) const;

  comm::Communicator group_;
  comm::Engine* engine_ = nullptr;
  comm::SumOrder order_ = comm::SumOrder::library;
  bool sequence_ = false;
  mutable std::vector<std::int64_t> bounds_;  // size() + 1: the engine's during a call
};

}  // namespace trireme::parallel
