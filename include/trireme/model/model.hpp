#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trireme/model/block.hpp"
#include "trireme/model/options.hpp"

namespace trireme::model {

/// A chain of blocks with what they declare.
class Model {
 public:
  /// `input`: shape of the network's input, [batch, height, width, channels]; the batch does not matter. Throws InputError (model.* keys).
  Model(const ModelOptions& options, const Shape& input, std::int64_t classes);

  const parallel::ParameterList& parameters() const { return list_; }
  const std::vector<std::unique_ptr<Block>>& blocks() const { return blocks_; }
  /// Trained elements, running statistics left out.
  std::int64_t weights() const;

  /// Logits [B, classes] of x [B, H, W, C].
  Tensor forward(Pass& pass, Tensor x);
  /// Backward through the blocks in reverse; `block_done(i)` is called when the gradients of block i are complete.
  template <class Done>
  void backward(Pass& pass, Tensor dy, Done&& block_done) {
    for (std::size_t i = blocks_.size(); i-- > 0;) {
      pass.enter_block();
      dy = blocks_[i]->backward(pass, dy);
      block_done(static_cast<int>(i));
    }
  }

 private:
  std::vector<std::unique_ptr<Block>> blocks_;
  parallel::ParameterList list_;
};

/// The blocks of a residual network (He et al. 2016; v1.5: the stride sits in the 3x3 convolution), under torchvision's names. Depths 8, 14,
/// 20, 32, 44, 56: the CIFAR form, three stages of (depth - 2) / 6 basic blocks, `width` first, doubling.
std::vector<std::unique_ptr<Block>> make_resnet(const ModelOptions& options, const Shape& input, std::int64_t classes);

/// Linear layers with ReLU between: `layers.<i>.weight`, `.bias`.
std::vector<std::unique_ptr<Block>> make_mlp(const ModelOptions& options, const Shape& input, std::int64_t classes);

}  // namespace trireme::model
