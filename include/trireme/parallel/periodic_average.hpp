// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/engine/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/state_list.hpp"

namespace trireme::parallel {

/// Averages replicas that trained independently for some steps (local SGD: Stich 2019).
///
/// Weights, statistics and slots become their mean over the data group. With an outer momentum m
/// (block-wise model update filtering: Chen and Huo 2016) the weights continue from the last
/// average, the anchor w0: v = m v + (mean - w0), w = w0 + v.
///
/// All ranks compute the same bits. The mean is the sum times 1 / size: exact for equal values if
/// size is a power of two, otherwise accurate to one or two ulps.
class PeriodicAverage {
 public:
  struct Options {
    double outer_momentum = 0;
    bool deterministic = false;  ///< sums in tree order
  };
  /// Averages the master weights of `store` and `slots` (same layout) over `data`. Requires master
  /// weights on the device and no sharding. Allocates velocity and anchor from `state`. average()
  /// uses the store's flat_gradient() as scratch memory.
  PeriodicAverage(ParameterStore& store, std::vector<WindowedBuffer*> slots,
                  const comm::Communicator& data, comm::Engine& engine, const Options& options,
                  Arena& state);

  /// Sets the anchor to the current weights, which must be equal on all ranks. Called before the
  /// first step.
  void anchor(ops::Context& context);
  /// Averages all state and updates the working weights. Collective over the data group; waits.
  void average(ops::Context& context);
  /// Adds v, if there is an outer momentum, to the state that a checkpoint holds.
  void add_state(StateList& list) const {
    if (velocity_.defined())
      list.push_back({.group = "optimizer/outer_momentum", .flat = velocity_});
  }
  /// Returns v in the layout of the master weights, zero for statistics, without frozen tensors.
  /// Undefined without outer momentum.
  const Tensor& velocity() const { return velocity_; }

 private:
  struct WeightRange {
    std::int64_t begin = 0, end = 0;
  };
  void take_mean(ops::Context& context, WindowedBuffer& buffer);
  void step(ops::Context& context);

  ParameterStore& store_;
  std::vector<WindowedBuffer*> slots_;
  comm::Communicator data_;
  comm::Engine& engine_;
  Options options_;
  std::vector<WeightRange> weight_ranges_;  ///< ranges of the flat buffers that contain weights
  Tensor velocity_, anchor_;
};

}  // namespace trireme::parallel
