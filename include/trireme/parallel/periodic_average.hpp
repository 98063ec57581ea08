#pragma once

#include <cstdint>
#include <vector>

#include "trireme/comm/engine.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::parallel {

/// Brings replicas that went their own ways for some steps back to one state (local SGD: Stich
/// 2019): weights, statistics and slots become their mean over the data group. With an outer
/// momentum m the weights go on from their last common state, the anchor, by a velocity (block-wise
/// model update filtering: Chen and Huo 2016): v = m v + (mean - anchor), w = anchor + v.
///
/// All ranks get the same bits. The mean is the sum times 1 / size: exact for equal values in a
/// group of a power of two, else to an ulp or two.
class PeriodicAverage {
 public:
  struct Options {
    double outer_momentum = 0;
    bool deterministic = false;  ///< sums in the order of the tree
  };
  /// Averages the store's master weights, which lie on the device, and `slots` (in their layout),
  /// over `data`; the store shards nothing. Velocity and anchor are taken from `state`; while it
  /// works, the store's flat_gradient() serves as scratch memory.
  PeriodicAverage(ParameterStore& store, std::vector<WindowedBuffer*> slots,
                  const comm::Communicator& data, comm::Engine& engine, const Options& options,
                  Arena& state);

  /// The weights as they are, the same on all ranks, are the last common state: before the first
  /// step of a start.
  void anchor(ops::Context& context);
  /// Collective over the data group. Then the working weights are those of the master.
  void average(ops::Context& context);
  /// v, in the layout of the master weights, zero where there are statistics; undefined without
  /// outer momentum.
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
  std::vector<WeightRange>
      weight_ranges_;  ///< where the flat buffers hold weights and not statistics
  Tensor velocity_, anchor_;
};

}  // namespace trireme::parallel
