// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/update/step_decision.hpp"
#include "trireme/ops/update/update.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// The position of this rank's tensors in the whole model, over which norms are taken and split
/// matrices are gathered. By default this rank holds the whole model.
struct NormScope {
  comm::Communicator model;        ///< the ranks that together hold one replica: tensor x pipeline
  comm::Communicator tensor = {};  ///< those of them that hold the parts of a split tensor
  /// By tensor of this rank: its index in the whole model's list. Not read if `tensor_count` is 0.
  std::vector<std::int32_t> global_index;
  /// Number of tensors of the whole model. 0: this rank's list is the whole model's.
  int tensor_count = 0;
  /// By tensor of this rank: 1 if this rank counts it in the norm. A replicated tensor is counted
  /// on tensor rank 0, a tied one by its owner. Empty: all are counted.
  std::vector<char> counted;
  comm::Engine* engine = nullptr;  ///< gathers over both; null if they are one rank
};

/// Computes the sums of squares by tensor of a flat buffer that is partitioned over ranks. Frozen
/// tensors are left out: their sums are 0.
///
/// The result has the same bits at every sharding, because every sum is taken in one order:
///
///   compute stream   row sums of squares | sums by tensor          | (sums complete)
///   data group                all-gather |                         |
///   model group                          |              all-gather |
///
/// One double for each row is gathered over the data group in the order of the whole layout and
/// added row by row. The model's ranks then gather their sums by tensor, which the decision kernel
/// adds in the order of the ranks. All data stays where kernels run.
class SquareSums {
 public:
  /// The tables that kernels read and write take their memory from `memory`, unless kernels run in
  /// host memory.
  SquareSums(const parallel::ParameterStore& store, const NormScope& scope,
             const parallel::StateMemory& memory);
  SquareSums(const SquareSums&) = delete;
  SquareSums& operator=(const SquareSums&) = delete;
  /// Enqueues the sums of `flat`, which is on the device in the layout of the store's owned().
  /// Elements are clipped to [-limit, limit] first; `flat` does not change. Collective over the
  /// data and model groups. On meta it only counts; all sums stay 0.
  void measure(ops::Context& context, const Tensor& flat, float limit = ops::unlimited);
  /// The same for a buffer that may be offloaded to host memory: streams it through the device
  /// window by window.
  void measure(ops::Context& context, parallel::WindowedBuffer& buffer);
  /// The same in parts: the rows of one window, whose elements are on the device; then, after all
  /// windows, the sums by tensor. The latter is collective over the data and model groups.
  void measure_window(ops::Context& context, const parallel::ParameterShard::Window& window,
                      const Tensor& elements, float limit = ops::unlimited);
  void reduce_by_tensor(ops::Context& context);
  /// Returns the sums that were computed last, as kernels on `stream` read them: one part for each
  /// rank of the model group.
  ops::PartialSquareSums parts(const Stream& stream);
  /// Returns the index of a tensor of this rank in each part. All running statistics share one
  /// index, the last.
  std::size_t index_of(std::size_t tensor) const { return index_[tensor]; }

 private:
  void make_tables(const std::vector<char>& counted, const parallel::StateMemory& memory);

  const parallel::ParameterStore& store_;
  comm::Communicator model_;
  comm::Engine* engine_;
  bool sharded_;
  std::size_t tensors_;  ///< of the whole model
  /// By tensor of this rank: its index in a part; running statistics: the last one.
  std::vector<std::size_t> index_;
  std::vector<std::int64_t> row_bounds_;   ///< byte offsets of the data ranks' rows in row_sums_
  std::size_t own_row_begin_ = 0;          ///< index in row_sums_ of this rank's first row
  std::int64_t list_terms_ = 0;            ///< number of indices in all lists
  std::vector<std::int64_t> part_bounds_;  ///< byte offsets of the model ranks' parts in squares_
  parallel::OwnedTable<const ops::FlatRow> rows_;  ///< of this rank
  parallel::OwnedTable<double> row_sums_;  ///< [data ranks, maximum of the rows that a rank owns]
  /// Indices in row_sums_ of the rows of each sum, one list after the other.
  parallel::OwnedTable<const std::int64_t> list_indices_;
  /// [tensors + 2]: begin of each list in list_indices_
  parallel::OwnedTable<const std::int64_t> list_begins_;
  parallel::OwnedTable<double> squares_;  ///< [model ranks, tensors + 1]
};

}  // namespace trireme::optim
