// SPDX-License-Identifier: Apache-2.0
//
// Builds a model of any kind: validates the layout, makes the blocks, and records the shapes
// between them. Model's constructor is the entry point; it allocates no device memory.
#include "trireme/model/model.hpp"

#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/model/family.hpp"

namespace trireme::model {

namespace {

// 4 TiB in float32. With gradients and optimizer state no machine holds this for one replica, and
// byte counts cannot overflow below it.
constexpr double max_weights = 0x1p40;

/// Returns the number of elements. A double cannot overflow here.
double element_count(const Shape& shape) {
  double count = 1;
  for (int i = 0; i < shape.rank(); ++i) count *= static_cast<double>(shape[i]);
  return count;
}

/// Throws InputError if the model has too many weights.
void validate_size(double count, const ModelOptions& options, std::int64_t classes) {
  validate(
      count <= max_weights,
      "[model] has {:.0f} weights or more with {} classes; at most {:.0f} can be trained, use {}",
      count, classes, max_weights, family_of(options).size_advice);
}

/// Throws InputError if a rule is broken.
void require(const std::optional<BrokenRule>& broken) {
  if (broken) throw InputError(fmt::format("{}: {}", broken->key, broken->message));
}

/// Throws InputError if the extents of the model contradict each other or cannot be split over the
/// tensor group.
void validate_extents(const ModelOptions& options, const Shape& input, std::int64_t classes,
                      const TensorPlacement& placement) {
  const Family& family = family_of(options);
  const int size = placement.tensor_size;
  TRIREME_EXPECT(size > 0);
  for (const BrokenRule& broken : family.broken_rules(options)) require(broken);
  require(broken_split_rule(options, size));
  if (placement.sequence_parallel) require(family.broken_row_rule(options, input, size, {}));
  if (!takes_tokens(options)) return;
  TRIREME_EXPECT(input.rank() == 2 && input[1] == family.context(options) &&
                 classes == family.vocabulary(options));
  validate(classes >= size,
           "model.vocabulary = {} is less than parallel.tensor = {}, over which it is split; use "
           "tensor = {}",
           classes, size, largest_divisor(max_tensor_size(options), classes));
}

}  // namespace

Model::Model(const ModelOptions& options, const Shape& input, const AnswerExtents& outputs,
             const TensorPlacement& placement)
    : list_(placement.tensor_rank, placement.tensor_size) {
  const std::int64_t classes = outputs.count;
  validate_extents(options, input, classes, placement);
  const Family& family = family_of(options);
  TRIREME_EXPECT(!outputs.is_map() || family.makes_maps());
  ModelParts chain = family.make(options, input, outputs, placement);
  blocks_ = std::move(chain.blocks);
  head_ = std::move(chain.head);
  // The size is checked after each block, before the shape of a larger one can overflow.
  block_input_shapes_.push_back(input);
  double elements = 0;
  std::size_t counted = 0;  // entries of the list
  for (int i = 0; i <= block_count(); ++i) {
    declare(list_, i, i + 1);
    for (; counted < list_.entries().size(); ++counted)
      elements += element_count(list_.entries()[counted].spec.shape);
    validate_size(elements, options, classes);
    if (i < block_count())
      block_input_shapes_.push_back(block(i).output_shape(block_input_shapes_.back()));
  }
}

void Model::declare(parallel::ParameterList& list, int begin, int end) const {
  TRIREME_EXPECT(0 <= begin && begin <= end && end <= block_count() + 1);
  for (int i = begin; i < end; ++i) {
    list.begin_block(i, i == block_count());
    i < block_count() ? block(i).declare(list) : head_->declare(list);
  }
}

Shape Model::input_in_memory(DType dtype, DeviceKind target) const {
  const Shape& input = block_input_shape(0);
  return block_count() > 0 ? block(0).model_input_in_memory(input, dtype, target) : input;
}

std::int64_t Model::weight_count() const {
  std::int64_t count = 0;
  for (const parallel::ParameterList::Entry& entry : list_.entries()) {
    if (entry.spec.role == parallel::Role::weight) count += entry.spec.shape.elements();
  }
  return count;
}

}  // namespace trireme::model
