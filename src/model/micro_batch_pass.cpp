// SPDX-License-Identifier: Apache-2.0
//
// Starts of the forward and backward pass of a micro-batch.
#include "trireme/model/block.hpp"

namespace trireme::model {

void MicroBatchPass::begin_forward(bool training, const std::uint64_t* sample_keys) {
  training_ = training;
  sample_keys_ = sample_keys;
  sequence_.reset();
  saved_.clear();
  activations_->rewind(0);
  current_activations_ = activations_;
  // Every micro-batch uses the two arenas in the same order, so the peaks of one hold for all.
  resources_.ping_pong.rewind();
}

void MicroBatchPass::begin_sequence(const SequenceWindow& window) {
  TRIREME_EXPECT(window.first == 0 || !window.cache.empty());
  begin_forward(false, nullptr);
  sequence_ = window;
}

void MicroBatchPass::begin_backward(ops::Write write, float statistic_scale) {
  TRIREME_EXPECT(training_);
  write_ = write;
  statistic_scale_ = statistic_scale;
  resources_.ping_pong.rewind();
}

}  // namespace trireme::model
