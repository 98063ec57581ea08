#include "trireme/model/block.hpp"

namespace trireme::model {

void Pass::begin_forward(bool training, const std::uint64_t* sample_keys) {
  training_ = training;
  sample_keys_ = sample_keys;
  saved_.clear();
  kept_->rewind(0);
  arena_ = kept_;
  around_.flow
      .rewind();  // every micro-batch takes the two sides alike, so that one tells what all need
}

void Pass::begin_backward(ops::Write write, float statistic_scale) {
  TRIREME_EXPECT(training_);
  write_ = write;
  statistic_scale_ = statistic_scale;
  around_.flow.rewind();
}

}  // namespace trireme::model
