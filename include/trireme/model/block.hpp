// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/ops/normalization.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

/// Two small arenas for tensors that live only until the next block is done: gradients between
/// blocks, and activations in evaluation.
///
/// A block reads its input from one arena and writes its output to the other:
///
///   block      n            n + 1        n + 2
///   reads dy   arena A      arena B      arena A
///   writes dx  arena B      arena A      arena B     (emptied when the block is entered)
///
/// Each rank has one pair, shared by all passes in flight: its passes take turns on one stream.
class PingPongArena {
 public:
  PingPongArena(Arena& first, Arena& second) : arenas_{&first, &second} {}
  /// Enters the next block: switches to the other arena and empties it.
  void switch_arena() {
    side_ = 1 - side_;
    arenas_[side_]->rewind(0);
  }
  /// Empties both arenas and starts with the first one. Every micro-batch uses the arenas in the
  /// same order, so the peaks of one micro-batch hold for all.
  void rewind() {
    side_ = 0;
    for (Arena* arena : arenas_) arena->rewind(0);
  }
  /// Returns the arena for the output of the current block.
  Arena& arena() { return *arenas_[side_]; }

 private:
  Arena* arenas_[2];
  int side_ = 0;
};

/// The resources that all micro-batch passes of a rank share. All outlive the
/// passes.
struct PassResources {
  ops::Context& context;
  parallel::ParameterStore& store;
  const parallel::TensorGroup& tensor;
  PingPongArena& ping_pong;
  std::uint64_t seed = 1;           ///< run.seed, the seed of dropout masks
  ops::BatchGroup batch_norm = {};  ///< the ranks that compute batch norm together in training
  /// A step has several micro-batches, which use the same weights.
  bool several_micro_batches = true;
};

/// Positions of one sequence that continue earlier ones, for text generation.
///
/// Row r of the pass is position first + r. A layer of attention writes the keys and values of the
/// rows to its tensor of `cache`, and reads those of all positions up to its row. `cache` has a
/// tensor [positions, width] for each of Family::cache_widths, or is empty: then first is 0.
struct SequenceWindow {
  std::span<const Tensor> cache;
  std::int64_t first = 0;
};

/// The state of one micro-batch on its way through a chunk of blocks.
///
/// It bundles the device context, the weights, the mode (training or evaluation), and a stack of
/// saved activations. Forward pushes the tensors that backward needs; backward pops them in exactly
/// the reverse order. There is one object per micro-batch in flight; it is reused for later ones.
///
///   begin_forward  | block 0: save a, b | block 1: save c |
///   begin_backward | block 1: pop c     | block 0: pop b, a |
class MicroBatchPass {
 public:
  /// `activations`: the arena that holds activations from forward to backward in training.
  MicroBatchPass(const PassResources& resources, Arena& activations)
      : resources_(resources), activations_(&activations), current_activations_(&activations) {
    saved_.reserve(1024);
  }

  /// Starts the forward pass of a micro-batch: empties the activation arena and the stack.
  /// `sample_keys` [batch] seeds the dropout masks of each sample; null means no dropout.
  void begin_forward(bool training, const std::uint64_t* sample_keys) {
    training_ = training;
    sample_keys_ = sample_keys;
    sequence_.reset();
    saved_.clear();
    activations_->rewind(0);
    current_activations_ = activations_;
    resources_.ping_pong.rewind();
  }
  /// Starts the forward pass of one sequence of any length in evaluation mode. The window's memory
  /// outlives the pass.
  void begin_sequence(const SequenceWindow& window) {
    TRIREME_EXPECT(window.first == 0 || !window.cache.empty());
    begin_forward(false, nullptr);
    sequence_ = window;
  }
  /// Starts the backward pass. `write`: whether gradients are assigned or added. `statistic_scale`:
  /// weight of this micro-batch's running statistics, 1 / (micro-batches of the step over all
  /// replicas).
  void begin_backward(ops::Write write, float statistic_scale) {
    TRIREME_EXPECT(training_);
    write_ = write;
    statistic_scale_ = statistic_scale;
    resources_.ping_pong.rewind();
  }
  /// Called before each block, in forward and in backward.
  void enter_block() { resources_.ping_pong.switch_arena(); }

  ops::Context& context() { return resources_.context; }
  parallel::ParameterStore& store() { return resources_.store; }
  const parallel::TensorGroup& tensor() const { return resources_.tensor; }
  /// Returns the ranks that compute batch norm together in training.
  const ops::BatchGroup& batch_norm() const { return resources_.batch_norm; }
  bool training() const { return training_; }
  ops::Write write() const { return write_; }
  float statistic_scale() const { return statistic_scale_; }
  const std::uint64_t* sample_keys() const { return sample_keys_; }
  /// Returns the positions of begin_sequence(); nothing for a micro-batch of begin_forward().
  const std::optional<SequenceWindow>& sequence() const { return sequence_; }
  /// Returns the position of row 0 in its sequence.
  std::int64_t first_position() const { return sequence_ ? sequence_->first : 0; }
  /// Returns `count` joined weights for a matrix product or convolution. Their prepared form (such
  /// as a packed or rounded copy) is cached if the weights themselves stay in memory. A trained
  /// weight's form is kept until the next update, a frozen weight's for the whole run.
  ops::Weight weight(parallel::ParameterId first, ops::PreparedWeight& prepared, int count = 1) {
    return {store().weight(first, count), store().version(first),
            store().resident() ? &prepared : nullptr};
  }
  /// Returns such weights of a layer that uses them once in forward and once in backward. If
  /// trained weights change after one micro-batch, their prepared forms are made in the workspace:
  /// keeping them would take memory and save no time, unless both directions use one form.
  ops::Weight single_use_weight(parallel::ParameterId first, ops::PreparedWeight& prepared,
                                int count = 1) {
    ops::Weight once = weight(first, prepared, count);
    if (!resources_.several_micro_batches && store().needs_gradient(first)) once.prepared = nullptr;
    return once;
  }
  /// Returns the memory for the gradient of `count` joined parameters, to assign or to add
  /// (write()); undefined if they are frozen.
  Tensor gradient_of(parallel::ParameterId first, int count = 1) {
    return store().needs_gradient(first) ? store().gradient(first, count) : Tensor{};
  }
  /// Returns the random key of a layer in this run. `name_key` is the hash of the layer's name.
  std::uint64_t layer_key(std::uint64_t name_key) const {
    return mix64(name_key ^ mix64(resources_.seed));
  }

  /// Allocates the output of a forward operation, uninitialized. In training it lives until this
  /// micro-batch's backward; in evaluation until the next block is done.
  Tensor activation(DType type, const Shape& shape) {
    return (training_ ? *current_activations_ : resources_.ping_pong.arena()).allocate(type, shape);
  }
  /// Allocates a gradient, uninitialized. It lives until the next block's backward is done.
  Tensor gradient(DType type, const Shape& shape) {
    return resources_.ping_pong.arena().allocate(type, shape);
  }
  /// Pushes a tensor for backward. Does nothing in evaluation.
  void push_saved(const Tensor& tensor) {
    if (training_) saved_.push_back(tensor);
  }
  /// Pops the tensor that was saved last.
  Tensor pop_saved() {
    TRIREME_EXPECT(!saved_.empty());
    const Tensor tensor = saved_.back();
    saved_.pop_back();
    return tensor;
  }

  /// Sends the following activations to `arena`, as recomputation does with its scratch memory.
  /// Returns the previous arena.
  Arena& redirect_activations(Arena& arena) {
    Arena& before = *current_activations_;
    current_activations_ = &arena;
    return before;
  }
  /// Returns the number of saved tensors, as a mark for drop_saved().
  std::size_t saved_count() const { return saved_.size(); }
  /// Drops the tensors that were saved after the mark.
  void drop_saved(std::size_t mark) { saved_.resize(mark); }

 private:
  PassResources resources_;
  Arena *activations_, *current_activations_;
  std::vector<Tensor> saved_;
  const std::uint64_t* sample_keys_ = nullptr;
  std::optional<SequenceWindow> sequence_;
  bool training_ = false;
  ops::Write write_ = ops::Write::assign;
  float statistic_scale_ = 1;
};

/// One block of a model: one tensor in, one tensor out. Residual branches are inside a block.
///
/// Pipeline stages are cut between blocks. Gradient buckets, memory plans and times are per block.
class Block {
 public:
  virtual ~Block() = default;
  /// Returns the name for plans and traces, such as "layer1.0".
  virtual std::string name() const = 0;
  /// Returns the layers in words, as in "conv, norm"; empty: the name says it.
  virtual std::string contents() const { return {}; }
  /// Adds the block's parameters to `list` and keeps their ids, which replace those of earlier
  /// calls.
  virtual void declare(parallel::ParameterList& list) = 0;
  /// Returns the shape of the output, as this rank of the tensor group holds it. Throws InputError
  /// if the input does not fit.
  virtual Shape output_shape(const Shape& input) const = 0;
  /// Returns the shape in memory of an input of shape `input` in `dtype`, if the block is the first
  /// one, on the device kind `target`. The last extent may be larger: the further channels are 0.
  virtual Shape model_input_in_memory(const Shape& input, DType /*dtype*/,
                                      DeviceKind /*target*/) const {
    return input;
  }
  /// Enqueues the forward operations and saves what backward needs. Collective over the tensor
  /// group.
  virtual Tensor forward(MicroBatchPass& pass, const Tensor& x) = 0;
  /// Enqueues the backward operations and writes the weights' gradients. Collective over the tensor
  /// group.
  ///
  /// May overwrite dy. Returns dx in memory of MicroBatchPass::gradient() or of dy. The first block
  /// of a model returns an undefined tensor.
  virtual Tensor backward(MicroBatchPass& pass, const Tensor& dy) = 0;
};

}  // namespace trireme::model
