#include "trireme/model/block.hpp"

namespace trireme::model {

void Pass::begin(bool training, ops::Write write, float statistic_scale) {
  training_ = training;
  write_ = write;
  statistic_scale_ = statistic_scale;
  saved_.clear();
  side_ = 0;  // every micro-batch takes the two sides alike, so that one tells what all need
  memory_.kept->rewind(0);
  for (Arena* arena : memory_.flow) arena->rewind(0);
}

void Pass::enter_block() {
  side_ = 1 - side_;
  memory_.flow[side_]->rewind(0);
}

}  // namespace trireme::model
