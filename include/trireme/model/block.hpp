#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"
#include "trireme/parallel/tensor_group.hpp"

namespace trireme::model {

/// Where gradients between blocks live, and in evaluation activations: two small arenas used in
/// turn (a block reads its dy from one and writes its dx to the other). One a rank, whatever the
/// number of passes in flight.
class PingPongArena {
 public:
  PingPongArena(Arena& first, Arena& second) : arenas_{&first, &second} {}
  /// The next block is entered: what it makes goes to the other side.
  void switch_arena() {
    side_ = 1 - side_;
    arenas_[side_]->rewind(0);
  }
  void rewind() {
    side_ = 0;
    for (Arena* arena : arenas_) arena->rewind(0);
  }
  Arena& arena() { return *arenas_[side_]; }

 private:
  Arena* arenas_[2];
  int side_ = 0;
};

/// What all passes of a rank have in common.
struct StageResources {
  ops::Context& context;
  parallel::ParameterStore& store;
  const parallel::TensorGroup& tensor;
  PingPongArena& ping_pong;
  std::uint64_t seed = 1;  ///< run.seed: dropout
};

/// One micro-batch on its way through a chunk of blocks: the device context, the weights, whether
/// it trains, and the stack where forward leaves what backward will need (last in, first out).
class MicroBatchPass {
 public:
  /// `kept`: training: activations from forward to backward.
  MicroBatchPass(const StageResources& resources, Arena& activations)
      : resources_(resources), activations_(&activations), current_activations_(&activations) {
    saved_.reserve(1024);
  }

  /// Starts forward of a micro-batch: rewinds what was kept and empties the stack. `sample_keys`
  /// [batch]: see Dropout (null: none).
  void begin_forward(bool training, const std::uint64_t* sample_keys);
  /// Starts its backward: how its gradients are written, and the weight of its statistics, 1 /
  /// (micro-batches of the step over all replicas).
  void begin_backward(ops::Write write, float statistic_scale);
  void enter_block() { resources_.ping_pong.switch_arena(); }

  ops::Context& context() { return resources_.context; }
  parallel::ParameterStore& store() { return resources_.store; }
  const parallel::TensorGroup& tensor() const { return resources_.tensor; }
  bool training() const { return training_; }
  ops::Write write() const { return write_; }
  float statistic_scale() const { return statistic_scale_; }
  const std::uint64_t* sample_keys() const { return sample_keys_; }
  /// A weight for a product. Its prepared form is kept from update to update only where the weight
  /// itself is.
  ops::Weight weight(const Tensor& value, ops::PreparedWeight& prepared) {
    return {value, store().version(), store().resident() ? &prepared : nullptr};
  }
  /// The key under which a layer draws in this run, from the key of its name.
  std::uint64_t layer_key(std::uint64_t name_key) const {
    return mix64(name_key ^ mix64(resources_.seed));
  }

  /// Memory for what forward makes: kept until backward in training.
  Tensor activation(DType type, const Shape& shape) {
    return (training_ ? *current_activations_ : resources_.ping_pong.arena()).allocate(type, shape);
  }
  /// Memory for a gradient that lives until the next block's backward is done.
  Tensor gradient(DType type, const Shape& shape) {
    return resources_.ping_pong.arena().allocate(type, shape);
  }
  void push_saved(const Tensor& tensor) {
    if (training_) saved_.push_back(tensor);
  }
  Tensor pop_saved() {
    TRIREME_EXPECT(!saved_.empty());
    const Tensor tensor = saved_.back();
    saved_.pop_back();
    return tensor;
  }

  /// From here on forward leaves activations in `arena` (recomputation's scratch memory); the
  /// former one is returned.
  Arena& redirect_activations(Arena& arena) {
    Arena& before = *current_activations_;
    current_activations_ = &arena;
    return before;
  }
  std::size_t saved_count() const { return saved_.size(); }
  /// Forgets what was saved after a mark of saved().
  void drop_saved(std::size_t mark) { saved_.resize(mark); }

 private:
  StageResources resources_;
  Arena *activations_, *current_activations_;
  std::vector<Tensor> saved_;
  const std::uint64_t* sample_keys_ = nullptr;
  bool training_ = false;
  ops::Write write_ = ops::Write::assign;
  float statistic_scale_ = 1;
};

/// The unit of everything: stages are cut between blocks, gradients bucketed, memory planned and
/// time reported by block. One tensor in, one tensor out; residual branches live inside.
class Block {
 public:
  virtual ~Block() = default;
  virtual std::string name() const = 0;
  virtual void declare(parallel::ParameterList& list) = 0;
  /// Shape of the output for one of the input, as this rank of the tensor group holds them. Throws
  /// InputError where the input does not fit.
  virtual Shape output_shape(const Shape& input) const = 0;
  virtual Tensor forward(MicroBatchPass& pass, const Tensor& x) = 0;
  /// dy may be overwritten. Returns dx, in memory of Pass::gradient or dy's own; undefined where
  /// the block is the model's first.
  virtual Tensor backward(MicroBatchPass& pass, const Tensor& dy) = 0;
};

}  // namespace trireme::model
