// SPDX-License-Identifier: Apache-2.0
//
// Forward and backward through the blocks of one chunk: acquires weights, selects the memory of
// activations, recomputes blocks, notifies the reducer of complete gradients.
#include "model_chunk.hpp"

#include "trireme/device/profile_range.hpp"
#include "trireme/ops/elementwise.hpp"

namespace trireme::train {

Tensor ModelChunk::forward(MicroBatchSlot& slot, Tensor x) const {
  model::MicroBatchPass& pass = slot.pass;
  for (int block = begin(); block < end(); ++block) {
    pass.store().acquire(pass.context(), block, block + 1 < end() ? block + 1 : -1);
    pass.enter_block();
    if (pass.training()) slot.begin_part(block - begin() + 1);
    const ProfileRange range("trireme/train/block_forward");
    x = pass.training() && options_.is_recomputed(block) ? forward_keeping_input(pass, block, x)
                                                         : model_.block(block).forward(pass, x);
  }
  return x;
}

/// Runs a block whose activations will be recomputed: only its input and output are kept,
/// everything else goes to scratch memory.
Tensor ModelChunk::forward_keeping_input(model::MicroBatchPass& pass, int block,
                                         const Tensor& x) const {
  pass.push_saved(x);
  const std::size_t mark = pass.saved_count();
  scratch_.rewind(0);
  Arena& before = pass.redirect_activations(scratch_);
  const Tensor made = model_.block(block).forward(pass, x);
  pass.redirect_activations(before);
  pass.drop_saved(mark);
  const Tensor y = pass.activation(made.dtype, made.shape);
  ops::copy(pass.context(), made, y);
  return y;
}

Tensor ModelChunk::backward(MicroBatchSlot& slot, Tensor dy,
                            parallel::GradientReducer& reducer) const {
  model::MicroBatchPass& pass = slot.pass;
  for (int block = end(); block-- > begin();) {
    const int input = block - begin(), made = input + 1;  // Parts in the activation store.
    slot.activation_store.acquire(pass.context(), made);
    slot.activation_store.acquire(pass.context(), input);
    pass.store().acquire(pass.context(), block, block > begin() ? block - 1 : -1);
    reducer.block_begins(pass.context(), block);
    pass.enter_block();
    const ProfileRange range("trireme/train/block_backward");
    // Recompute the block's activations from its saved input, into scratch memory.
    if (options_.is_recomputed(block)) {
      const Tensor x = pass.pop_saved();
      scratch_.rewind(0);
      Arena& before = pass.redirect_activations(scratch_);
      model_.block(block).forward(pass, x);
      pass.redirect_activations(before);
    }
    dy = model_.block(block).backward(pass, dy);
    reducer.block_done(pass.context(), block);
    slot.activation_store.release(made);
  }
  slot.activation_store.release(0);
  return dy;
}

}  // namespace trireme::train
