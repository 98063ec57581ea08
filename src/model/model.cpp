#include "trireme/model/model.hpp"

#include "trireme/base/check.hpp"

namespace trireme::model {

namespace {

// 4 TiB in float32, with gradients and optimizer state more than any machine holds for one replica; byte counts below stay far from overflow.
constexpr double most_weights = 0x1p40;

/// In double, which does not overflow.
double count_of(const Shape& shape) {
  double count = 1;
  for (int i = 0; i < shape.rank(); ++i) count *= static_cast<double>(shape[i]);
  return count;
}

void validate_size(const parallel::ParameterList& list, const ModelOptions& options, std::int64_t classes) {
  double count = 0;
  for (const parallel::ParameterList::Entry& entry : list.entries()) count += count_of(entry.spec.shape);
  validate(count <= most_weights, "[model] makes {:.0f} weights or more with {} classes; at most {:.0f} can be trained, use {}", count, classes, most_weights,
           options.kind == ModelKind::resnet ? "a smaller model.width" : "smaller model.widths");
}

}  // namespace

Model::Model(const ModelOptions& options, const Shape& input, std::int64_t classes)
    : blocks_(options.kind == ModelKind::resnet ? make_resnet(options, input, classes) : make_mlp(options, input, classes)) {
  Shape shape = input;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    list_.begin_block(static_cast<int>(i));
    blocks_[i]->declare(list_);
    validate_size(list_, options, classes);
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
