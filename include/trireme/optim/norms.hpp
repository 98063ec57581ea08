#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/step_decision.hpp"
#include "trireme/ops/update.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// Where this rank's tensors stand in the whole model, over which norms are taken. By default they
/// are the whole model.
struct NormScope {
  comm::Communicator model;  ///< the ranks that together hold one replica: tensor x pipeline
  std::vector<std::int32_t>
      global_index;           ///< by tensor of this rank: its index in the whole model's list
  int tensor_count = 0;       ///< of the whole model; 0: this rank's list is the whole model's, and
                              ///< global_index is not read
  std::vector<char> counted;  ///< by tensor of this rank: it is counted here (replicated: on tensor
                              ///< rank 0; tied: at its owner); empty: all
  comm::Engine* engine = nullptr;  ///< gathers over `model`; null where that is one rank
};

/// Sums of squares by tensor of a flat buffer that is spread over ranks, in one order at every
/// sharding: one double a row, gathered over the data group in the order of the whole layout, added
/// row by row; then over the model's ranks in their order. All of it where the buffer is worked on.
class SquareSums {
 public:
  /// What kernels read and write comes from `memory`, where they cannot use the host's.
  SquareSums(const parallel::ParameterStore& store, const NormScope& scope,
             const parallel::StateMemory& memory);
  SquareSums(const SquareSums&) = delete;
  SquareSums& operator=(const SquareSums&) = delete;
  /// Of `flat` on the device, in the layout of the store's owned(). Collective over data and model.
  /// Meta: counts; all sums stay 0.
  void measure(ops::Context& context, const Tensor& flat);
  void measure(ops::Context& context, parallel::WindowedBuffer& buffer);
  /// What was measured last, as kernels on `stream` read it.
  ops::PartialSquareSums parts(const Stream& stream);
  /// Of a tensor of this rank, all its parts and shards together: its place in each part. That of
  /// all running statistics is one.
  std::size_t index_of(std::size_t tensor) const { return index_[tensor]; }

 private:
  void measure(ops::Context& context, const parallel::ParameterShard::Window& window,
               const Tensor& elements);
  void build_row_lists(const std::vector<char>& counted);
  void reduce_by_tensor(ops::Context& context);

  const parallel::ParameterStore& store_;
  comm::Communicator model_;
  comm::Engine* engine_;
  bool sharded_;
  std::size_t tensors_;                   ///< of the model
  std::vector<std::size_t> index_;        ///< by tensor: place in a part; statistics: the last one
  std::vector<double> row_sums_;          ///< [data ranks, as many as any of them owns]
  std::vector<std::int64_t> row_bounds_;  ///< of the ranks' rows, in bytes
  std::size_t own_row_begin_ = 0;         ///< where in row_sums_ this rank's begin
  std::vector<std::int64_t>
      list_indices_;  ///< in row_sums_, of the rows of each sum one after the other
  std::vector<std::int64_t> list_begins_;  ///< [tensors + 2]
  std::vector<double> squares_;            ///< [model ranks, tensors + 1]
  std::vector<std::int64_t> part_bounds_;  ///< of the ranks' parts, in bytes
  parallel::DeviceTable<const ops::FlatRow> rows_table_;
  parallel::DeviceTable<double> row_sums_table_;
  parallel::DeviceTable<const std::int64_t> indices_table_, begins_table_;
  parallel::DeviceTable<double> squares_table_;
};

}  // namespace trireme::optim
