#include "trireme/model/block.hpp"

namespace trireme::model {

void MicroBatchPass::begin_forward(bool training, const std::uint64_t* sample_keys) {
  training_ = training;
  sample_keys_ = sample_keys;
  saved_.clear();
  activations_->rewind(0);
  current_activations_ = activations_;
  resources_.ping_pong
      .rewind();  // every micro-batch takes the two sides alike, so that one tells what all need
}

void MicroBatchPass::begin_backward(ops::Write write, float statistic_scale) {
  TRIREME_EXPECT(training_);
  write_ = write;
  statistic_scale_ = statistic_scale;
  resources_.ping_pong.rewind();
}

}  // namespace trireme::model
