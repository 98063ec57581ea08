#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "trireme/ops/context.hpp"
#include "trireme/parallel/parameter_store.hpp"

namespace trireme::model {

/// One micro-batch on its way through the blocks of this rank: the device context, the weights, whether it trains, and the stack where
/// forward leaves what backward will need (last in, first out).
///
/// Memory: in training, activations stay in one arena until backward takes them; gradients between blocks alternate between two small
/// arenas (a block reads its dy from one and writes its dx to the other). In evaluation nothing is kept: activations alternate likewise.
class Pass {
 public:
  struct Memory {
    Arena* kept = nullptr;       ///< training: activations
    Arena* flow[2] = {nullptr, nullptr};
  };
  Pass(ops::Context& context, parallel::ParameterStore& store, Memory memory) : context_(context), store_(store), memory_(memory) { saved_.reserve(1024); }

  /// Starts a micro-batch: rewinds the arenas and empties the stack.
  void begin(bool training, ops::Write write, float statistic_scale);
  /// The next block is entered: its outputs go to the other flow arena.
  void enter_block();

  ops::Context& context() { return context_; }
  parallel::ParameterStore& store() { return store_; }
  bool training() const { return training_; }
  /// How this micro-batch's gradients are written.
  ops::Write write() const { return write_; }
  /// 1 / (micro-batches of the step over all replicas): the weight of this micro-batch's statistics.
  float statistic_scale() const { return statistic_scale_; }

  /// Memory for what forward makes: kept until backward in training.
  Tensor activation(DType type, const Shape& shape) { return (training_ ? memory_.kept : memory_.flow[side_])->allocate(type, shape); }
  /// Memory for a gradient that lives until the next block's backward is done.
  Tensor gradient(DType type, const Shape& shape) { return memory_.flow[side_]->allocate(type, shape); }
  void save(const Tensor& tensor) {
    if (training_) saved_.push_back(tensor);
  }
  Tensor restore() {
    TRIREME_EXPECT(!saved_.empty());
    const Tensor tensor = saved_.back();
    saved_.pop_back();
    return tensor;
  }

 private:
  ops::Context& context_;
  parallel::ParameterStore& store_;
  Memory memory_;
  std::vector<Tensor> saved_;
  bool training_ = false;
  ops::Write write_ = ops::Write::assign;
  float statistic_scale_ = 1;
  int side_ = 0;
};

/// The unit of everything: stages are cut between blocks, gradients bucketed, memory planned and time reported by block.
/// One tensor in, one tensor out; residual branches live inside.
class Block {
 public:
  virtual ~Block() = default;
  virtual std::string name() const = 0;
  virtual void declare(parallel::ParameterList& list) = 0;
  /// Shape of the output for one of the input (batch first). Throws InputError where the input does not fit.
  virtual Shape output_shape(const Shape& input) const = 0;
  virtual Tensor forward(Pass& pass, const Tensor& x) = 0;
  /// dy may be overwritten. Returns dx; undefined where the block is the model's first and dx is not wanted.
  virtual Tensor backward(Pass& pass, const Tensor& dy) = 0;
};

}  // namespace trireme::model
