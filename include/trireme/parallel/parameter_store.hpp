// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "trireme/ops/cast_tensors.hpp"
#include "trireme/parallel/flat_layout.hpp"
#include "trireme/parallel/parameter.hpp"
#include "trireme/parallel/sharding.hpp"
#include "trireme/parallel/windowed_buffer.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::parallel {

/// The parameters of this rank in flat buffers: float32 master weights, the reduced gradient, the
/// working weights that ops read, and the buffers that backward writes. Views by parameter are in
/// memory order (TensorPartition::memory_shape).
///
///   sharding     master, reduced gradient   working weights
///   none         whole                      whole; the master itself if compute is float32
///   optimizer    own part                   whole, gathered after an update
///   gradients    own part                   whole, gathered after an update
///   parameters   own part                   by bucket, gathered before use
///
/// A data group of one does not shard. Frozen tensors have no reduced gradient; their working
/// weights are gathered once, and again only where they are held by bucket.
/// With master weights in host memory (`parallel.offload`), working weights also arrive by bucket,
/// at every kind.
///
/// Working weights by bucket use two buffers in turn; tied buckets have their own. Forward, one
/// bucket a block:
///
///   compute   acquire(0, 1) | block 0   | acquire(1, 2) | block 1     | acquire(2, -1) | block 2
///   buffer A  has bucket 0 .............| receives bucket 2 ..........| has bucket 2 ...........
///   buffer B  receives bucket 1 ........| has bucket 1 ...............|
class ParameterStore {
 public:
  /// Allocates the master and working weights from `parameters`, and the reduced gradient from
  /// `gradients`.
  ParameterStore(const ParameterList& list, const FlatLayout& layout, const Sharding& sharding,
                 const StateMemory& parameters, Arena& gradients);

  /// Computes the initial values of the master weights on the host, then the working weights.
  /// Collective over data.
  void initialize(ops::Context& context, std::uint64_t seed);
  /// Computes the working weights from the master weights (after a restart) and increments
  /// version(). Collective over data.
  void refresh_working(ops::Context& context);
  /// Called after an update. Starts to gather whole working weights, in the order in which forward
  /// reads them; discards those held by bucket. Collective over data; does not wait.
  void start_gather(ops::Context& context);
  /// Makes the weights of `block` readable until the next acquire() and starts to gather those of
  /// `next_block` (-1: none). Called before each forward and backward of a block, by all ranks of
  /// the data group in the same order. Waits for the gather of `block`. Costs nothing if all
  /// weights are resident.
  void acquire(ops::Context& context, int block, int next_block);

  const ParameterList& list() const { return *list_; }
  const FlatLayout& layout() const { return *layout_; }
  DType compute_type() const { return layout_->compute_type(); }
  /// Returns the sharding in effect: `kind` is none in a group of one.
  const Sharding& sharding() const { return sharding_; }
  const ParameterShard& owned() const { return owned_; }
  /// Returns whether working weights stay valid between updates; otherwise only until the next
  /// acquire().
  bool resident() const { return resident_; }

  /// Returns a working weight in the type of the layout (FlatTensor::type).
  Tensor weight(ParameterId id) const { return weight(id, 1); }
  /// Returns `count` joined parameters as one: [rows of all, row_elements]; vectors: [elements of
  /// all].
  Tensor weight(ParameterId first, int count) const;
  /// Returns whether a parameter is trained or a running statistic: whether its gradient is needed.
  bool needs_gradient(ParameterId id) const { return !(*list_)[id].frozen; }
  /// Returns the float32 buffer that backward writes now. For a frozen vector this is memory that
  /// nothing reads, because a norm computes the gradients of scale and shift together; frozen
  /// matrices have none.
  Tensor gradient(ParameterId id) const { return gradient(id, 1); }
  Tensor gradient(ParameterId first, int count) const;
  /// Returns the rows of the float32 master weight that this rank owns ([0, ..] if none).
  Tensor master(ParameterId id) const;

  /// Master weights in the layout of owned(), in host or device memory.
  const Tensor& flat_master() const { return master_.flat(); }
  /// The same, for access by window.
  WindowedBuffer& master_buffer() { return master_; }
  /// The reduced gradient in the layout of owned().
  const Tensor& flat_gradient() const { return gradient_; }
  /// The whole working weights as bytes, which an update also writes. Undefined if ops read the
  /// master weights, and if working weights are held by bucket.
  const Tensor& flat_working() const { return working_; }

  /// Replaces the reduced gradient by `flat` (float32, the layout of owned()).
  void set_flat_gradient(const Tensor& flat) { gradient_ = flat; }
  /// Makes gradient() of a bucket's parameters refer to `part` (float32 [elements of the bucket]).
  void set_bucket_gradient(int bucket, const Tensor& part) {
    bucket_gradients_[static_cast<std::size_t>(bucket)] = part;
  }
  /// Returns that memory.
  const Tensor& bucket_gradient(int bucket) const {
    return bucket_gradients_[static_cast<std::size_t>(bucket)];
  }

  /// Changes with every update of the weights, so that cached transformed weights are recomputed.
  std::uint64_t version() const { return version_; }
  /// Returns the version of one weight. Updates do not change that of a frozen weight.
  std::uint64_t version(ParameterId id) const {
    return needs_gradient(id) ? version_ : frozen_version_;
  }
  void weights_changed() { ++version_; }

 private:
  /// A buffer for the working weights of one bucket: the one it contains or receives (-1: none).
  struct WorkingBuffer {
    Tensor bytes;
    int bucket = -1;
  };
  /// Two buffers that the buckets of successive blocks use in turn, and the index of the one that
  /// is read now.
  struct TurnBuffers {
    WorkingBuffer buffers[2];
    int current = 0;
  };
  void place_frozen_gradients(Arena& gradients);
  void load_block(ops::Context& context, TurnBuffers& pair, int bucket, int next_bucket);
  int load_in_turn(ops::Context& context, TurnBuffers& pair, int bucket);
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
  std::vector<ops::TensorCast> casts_;          ///< of one window; kept for its capacity
  std::vector<Tensor> bucket_gradients_;        ///< by bucket
  std::vector<Tensor> bucket_working_;          ///< by bucket, bytes; undefined if not loaded
  std::vector<comm::Engine::Request> gathers_;  ///< by bucket: its gather; 0: complete
  TurnBuffers trained_turns_, frozen_turns_;    ///< not resident
  std::vector<WorkingBuffer> tied_buffers_;     ///< not resident: one for each tied bucket
  std::vector<int> tied_buckets_;               ///< the buckets of tied_buffers_
  /// Memory for gradients of frozen vectors, and by tensor the offset in it; -1: none.
  Tensor frozen_gradients_;
  std::vector<std::int64_t> frozen_offsets_;
  std::uint64_t version_ = 1, frozen_version_ = 1;
};

}  // namespace trireme::parallel
