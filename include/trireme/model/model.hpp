#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/model/block.hpp"
#include "trireme/model/head.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// Where a model's part stands in the tensor group. `sequence`: between parallel regions a rank
/// holds its part of the rows alone.
struct TensorPlacement {
  int tensor_rank = 0, tensor_size = 1;
  bool sequence_parallel = false;
};

/// A chain of blocks 0 .. n-1 and the head, counted as block n, with what they declare. Which of
/// them run on a rank is its user's affair: it declares each chunk that it holds, and calls the
/// blocks with memory of its own.
class Model {
 public:
  /// `input`: what enters block 0. Images: [batch, height, width, channels] in compute precision;
  /// gpt: int32 tokens [batch, context], and `classes` is the vocabulary. Throws InputError
  /// (model.* and parallel.* keys).
  Model(const ModelOptions& options, const Shape& input, std::int64_t classes,
        const TensorPlacement& placement = {});

  /// The whole model's list, with this tensor rank's parts: blocks 0 .. n-1, then the head.
  const parallel::ParameterList& parameters() const { return list_; }
  /// Blocks, the head not counted.
  int block_count() const { return static_cast<int>(blocks_.size()); }
  Block& block(int index) const { return *blocks_[static_cast<std::size_t>(index)]; }
  Head& head() const { return *head_; }

  /// Declares blocks [begin, end), end <= n + 1, in a rank's list, under their global indices: from
  /// now on they use that list's ids.
  void declare(parallel::ParameterList& list, int begin, int end) const;
  /// What enters block `index` (n: the head) on this rank of the tensor group, batch as in `input`.
  const Shape& block_input_shape(int index) const {
    return block_input_shapes_[static_cast<std::size_t>(index)];
  }
  /// Trained elements of the whole model, running statistics left out.
  std::int64_t weight_count() const;

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  std::unique_ptr<Head> head_;
  std::vector<Shape> block_input_shapes_;
  parallel::ParameterList list_;
};

/// What a kind of model is made of.
struct ModelParts {
  std::vector<std::unique_ptr<Block>> blocks;
  std::unique_ptr<Head> head;
};

/// The blocks of a residual network (He et al. 2016; v1.5: the stride sits in the 3x3 convolution),
/// under torchvision's names. Depths 8, 14, 20, 32, 44, 56: the CIFAR form, three stages of (depth
/// - 2) / 6 basic blocks, `width` first, doubling.
ModelParts make_resnet(const ModelOptions& options, const Shape& input, std::int64_t classes);

/// Linear layers with ReLU between: `layers.<i>.weight`, `.bias`. The last is the head.
ModelParts make_mlp(const ModelOptions& options, const Shape& input, std::int64_t classes);

/// A decoder-only transformer: embedding, `layers` blocks of attention and mlp, head. Positions say
/// whose names its tensors have: learned GPT-2's (Radford et al. 2019), rope Llama's (Touvron et
/// al. 2023).
ModelParts make_transformer(const TransformerOptions& options, const TensorPlacement& placement);

/// Throws InputError where the extents of a transformer do not fit together or do not divide over
/// the tensor group.
void validate_transformer(const TransformerOptions& options, int tensor_size);

}  // namespace trireme::model
