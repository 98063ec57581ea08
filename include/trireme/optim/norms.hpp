#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/ops/update.hpp"
#include "trireme/parallel/device_table.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::optim {

/// Where this rank's tensors stand in the whole model, over which norms are taken. By default they are the whole model.
struct NormGroups {
  comm::Communicator model;                ///< the ranks that together hold one replica: tensor x pipeline
  std::vector<std::int32_t> global_index;  ///< by tensor of this rank: its index in the whole model's list
  int tensors = 0;                         ///< of the whole model; 0: this rank's list is the whole model's, and global_index is not read
  std::vector<char> counted;               ///< by tensor of this rank: it is counted here (replicated: on tensor rank 0; tied: at its owner); empty: all
};

/// Sums of squares by tensor of a flat buffer that is spread over ranks, in one order at every sharding: one double a row, gathered over the
/// data group in the order of the whole layout, added row by row; then over the model's ranks in their order.
class SquareSums {
 public:
  /// What kernels read and write comes from `memory`, where they cannot use the host's.
  SquareSums(const parallel::ParameterStore& store, const NormGroups& groups, const parallel::StateMemory& memory);
  SquareSums(const SquareSums&) = delete;
  SquareSums& operator=(const SquareSums&) = delete;
  /// Of `flat` on the device, in the layout of the store's owned(). Collective over data and model; the host waits for the device. Meta: counts; all sums stay 0.
  void measure(ops::Context& context, const Tensor& flat);
  void measure(ops::Context& context, parallel::WindowedBuffer& buffer);
  /// Of a tensor of this rank, all its parts and shards together.
  double of(std::size_t tensor) const { return squares_[index_[tensor]]; }
  /// Over all weights of the model, tensor by tensor.
  double weights() const { return weights_; }
  /// Over its running statistics.
  double statistics() const { return squares_.back(); }

 private:
  void measure(ops::Context& context, const parallel::Shard::Window& window, const Tensor& elements);
  void add_up(ops::Context& context);
  const parallel::ParameterStore& store_;
  comm::Communicator model_;
  std::vector<std::size_t> index_;  ///< by tensor: place in squares_; statistics: the last one
  std::vector<char> counted_;
  std::vector<double> mine_;  ///< by row owned, as long as any data rank's
  parallel::DeviceTable<const ops::FlatRow> rows_;
  parallel::DeviceTable<double> sums_;  ///< mine_
  std::vector<double> gathered_;        ///< [data ranks, longest]
  std::vector<std::size_t> place_;      ///< by row of the layout: in gathered_
  std::vector<double> squares_;         ///< by tensor of the model, then all statistics
  std::vector<double> parts_;           ///< [model ranks, as squares_]
  double weights_ = 0;
};

}  // namespace trireme::optim
