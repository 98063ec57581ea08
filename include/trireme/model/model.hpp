// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/model/block.hpp"
#include "trireme/model/head.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// This rank's position in the tensor group. `sequence_parallel`: between parallel regions a rank
/// holds only its part of the rows (sequence parallelism).
struct TensorPlacement {
  int tensor_rank = 0, tensor_size = 1;
  bool sequence_parallel = false;
};

/// A model: blocks 0 .. n-1 and the head, which counts as block n, with their parameters.
///
/// A model holds no memory and runs nothing by itself. Its user declares the chunks of blocks that
/// run on this rank, and calls these blocks with passes of its own.
class Model {
 public:
  /// Builds the whole model. Costs no device memory.
  ///
  /// `input`: shape of the input of block 0. Images: [batch, height, width, channels] in compute
  /// precision. Text: int32 tokens [batch, context], and `outputs` is the vocabulary. Throws
  /// InputError about keys of [model] and [parallel], and for more than 2^40 weights.
  Model(const ModelOptions& options, const Shape& input, const AnswerExtents& outputs,
        const TensorPlacement& placement = {});

  /// Returns the parameters of the whole model: blocks 0 .. n-1, then the head. Each entry has the
  /// part that this rank of the tensor group holds.
  const parallel::ParameterList& parameters() const { return list_; }
  /// Returns the number of blocks, without the head.
  int block_count() const { return static_cast<int>(blocks_.size()); }
  Block& block(int index) const { return *blocks_[static_cast<std::size_t>(index)]; }
  Head& head() const { return *head_; }

  /// Declares blocks [begin, end), end <= n + 1, in a rank's own list, under their global indices.
  /// From now on these blocks use the ids of that list.
  void declare(parallel::ParameterList& list, int begin, int end) const;
  /// Returns the shape in memory of the model's input in `dtype` on the device kind `target`
  /// (Block::model_input_in_memory).
  Shape input_in_memory(DType dtype, DeviceKind target) const;
  /// Returns the shape of the input of block `index` (n: the head) on this rank of the tensor
  /// group.
  const Shape& block_input_shape(int index) const {
    return block_input_shapes_[static_cast<std::size_t>(index)];
  }
  /// Returns the number of trained elements of the whole model, without running statistics.
  std::int64_t weight_count() const;

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Head> head_;
  std::vector<Shape> block_input_shapes_;
  parallel::ParameterList list_;
};

/// The parts of a model, as a family makes them.
struct ModelParts {
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Head> head;
};

}  // namespace trireme::model
