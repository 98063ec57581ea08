#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/parameter.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/windowed_buffer.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::parallel {

/// The flat buffers of this rank: float32 master weights and the reduced gradient (what this rank
/// owns of them), the working weights that ops read, and where backward writes now. Views by
/// parameter are in memory order (Part::memory_shape).
///
/// Kind of sharding   master, reduced gradient   working weights
/// none               whole                      whole; the master itself where compute is float32
/// optimizer          own shards                 whole, gathered after an update
/// gradients          own shards                 whole, gathered after an update
/// parameters         own shards                 bucket by bucket, gathered before use: two buffers
/// in turn, tied buckets one of their own A group of one shards nothing. Where the master lies in
/// host memory (`parallel.offload`), no whole working weights are held on the device either: at any
/// kind they come bucket by bucket as at kind parameters.
class ParameterStore {
 public:
  /// Memory comes from `parameters` (master, working weights) and `gradients` (the reduced
  /// gradient; GradientReducer takes more from it).
  ParameterStore(const ParameterList& list, const FlatLayout& layout, const Sharding& sharding,
                 const StateMemory& parameters, Arena& gradients);

  /// Fills the master weights with their initial values, which the host computes, and makes the
  /// working weights. Collective over data.
  void initialize(ops::Context& context, std::uint64_t seed);
  /// Makes the working weights from the master weights anew (after a restart) and gives the weights
  /// a new version. Collective over data.
  void refresh_working(ops::Context& context);
  /// After an update: resident sharded weights start to be gathered, in the order in which forward
  /// needs them; others are forgotten. Collective over data.
  void start_gather(ops::Context& context);
  /// The weights of `block` may be read when it returns, until need() is called for another block;
  /// those of `next_block` (-1: none) are gathered meanwhile. Called before each forward and
  /// backward of a block, by all ranks of the data group in one order. Costs nothing where all is
  /// there.
  void acquire(ops::Context& context, int block, int next_block);

  const ParameterList& list() const { return *list_; }
  const FlatLayout& layout() const { return *layout_; }
  DType compute_type() const { return layout_->compute_type(); }
  /// `kind` is none in a group of one.
  const Sharding& sharding() const { return sharding_; }
  const ParameterShard& owned() const { return owned_; }
  /// Whether working weights stay from one update to the next; else they are there from one need()
  /// to the next only.
  bool resident() const { return resident_; }

  /// A working weight: in compute precision where the parameter has a compute copy, else float32
  /// (norms, biases, statistics).
  Tensor weight(ParameterId id) const { return weight(id, 1); }
  /// `count` parameters from `first` on that are joined, as one: [rows of all, row_elements], of
  /// one dimension: [elements of all].
  Tensor weight(ParameterId first, int count) const;
  /// float32: where backward writes now.
  Tensor gradient(ParameterId id) const { return gradient(id, 1); }
  Tensor gradient(ParameterId first, int count) const;
  /// float32: the rows of the master weight that this rank owns ([0, ..] where none).
  Tensor master(ParameterId id) const;

  /// In the layout of owned(), where it lies: in host memory or on the device.
  const Tensor& flat_master() const { return master_.flat(); }
  /// The same, to work on.
  WindowedBuffer& master_buffer() { return master_; }
  /// The reduced gradient, in the layout of owned().
  const Tensor& flat_gradient() const { return gradient_; }
  /// The whole working weights as bytes, where an update writes its copy; undefined where the
  /// master itself is read, and where there are none.
  const Tensor& flat_working() const { return working_; }

  /// The reduced gradient stands in `flat` (float32, the layout of owned()).
  void set_flat_gradient(const Tensor& flat) { gradient_ = flat; }
  /// Directs gradient() of a bucket's parameters to `part` (float32 [elements of the bucket]).
  void set_bucket_gradient(int bucket, const Tensor& part) {
    bucket_gradients_[static_cast<std::size_t>(bucket)] = part;
  }
  /// Where it is directed now.
  const Tensor& bucket_gradient(int bucket) const {
    return bucket_gradients_[static_cast<std::size_t>(bucket)];
  }

  /// Changes with every update of the weights: prepared forms are made anew.
  std::uint64_t version() const { return version_; }
  void weights_changed() { ++version_; }

 private:
  /// A buffer of a bucket's working weights: which bucket is there, or on its way (-1: none).
  struct WorkingBuffer {
    Tensor bytes;
    int bucket = -1;
  };
  int load_in_turn(ops::Context& context, int bucket);
  void load(ops::Context& context, WorkingBuffer& buffer, int bucket);
  void release(WorkingBuffer& buffer);
  void write_own_working(ops::Context& context, int bucket);
  void gather_bucket(int bucket);
  void wait_for_bucket(int bucket);
  Shape joined_shape(ParameterId first, int count) const;

  const ParameterList* list_;
  const FlatLayout* layout_;
  Sharding sharding_;
  ParameterShard owned_;
  WindowedBuffer master_;
  bool resident_;
  Tensor gradient_, working_;
  std::vector<Tensor> bucket_gradients_;  ///< by bucket
  std::vector<Tensor> bucket_working_;    ///< by bucket, bytes; undefined where it is not here
  std::vector<comm::Engine::Request> gathers_;  ///< by bucket: its gather; 0: it is here
  WorkingBuffer turn_buffers_[2];               ///< not resident
  int current_buffer_ = 0;                      ///< which of them holds what is read now
  std::vector<WorkingBuffer> tied_buffers_;     ///< not resident: one a tied bucket
  std::uint64_t version_ = 1;
};

}  // namespace trireme::parallel
