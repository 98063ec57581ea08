#include "trireme/model/model.hpp"

namespace trireme::model {

Model::Model(const ModelOptions& options, const Shape& input, std::int64_t classes)
    : blocks_(options.kind == ModelKind::resnet ? make_resnet(options, input, classes) : make_mlp(options, input, classes)) {
  Shape shape = input;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    list_.begin_block(static_cast<int>(i));
    blocks_[i]->declare(list_);
    shape = blocks_[i]->output_shape(shape);
  }
  TRIREME_EXPECT(shape.back() == classes);
}

std::int64_t Model::weights() const {
  std::int64_t count = 0;
  for (const parallel::ParameterList::Entry& entry : list_.entries()) {
    if (entry.spec.role == parallel::Role::weight) count += entry.spec.shape.elements();
  }
  return count;
}

Tensor Model::forward(Pass& pass, Tensor x) {
  for (const std::unique_ptr<Block>& block : blocks_) {
    pass.enter_block();
    x = block->forward(pass, x);
  }
  return x;
}

}  // namespace trireme::model
