#include "trireme/parallel/parameter_store.hpp"

#include <bit>
#include <cstring>

#include "trireme/base/check.hpp"

namespace trireme::parallel {
namespace {

void zero(const Tensor& flat) {
  if (flat.data != nullptr) std::memset(flat.data, 0, static_cast<std::size_t>(flat.bytes()));
}

/// Rounded to nearest even; a NaN stays one.
std::uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace

ParameterStore::ParameterStore(const ParameterList& list, const FlatLayout& layout, DType compute, Arena& parameters, Arena& gradients)
    : list_(&list), layout_(&layout), compute_type_(compute) {
  TRIREME_EXPECT(compute == DType::float32 || compute == DType::bfloat16);
  const Shape flat{layout.elements()};
  master_ = parameters.allocate(DType::float32, flat);
  if (compute != DType::float32) compute_ = parameters.allocate(compute, flat);
  gradient_ = gradients.allocate(DType::float32, flat);
  zero(master_);
  zero(compute_);
  zero(gradient_);
}

void ParameterStore::initialize(std::uint64_t seed) {
  if (master_.data != nullptr) {
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(list_->entries().size()); ++index) {
      const ParameterSpec& spec = (*list_)[{index}];
      initialize_rows(spec, seed, 0, spec.rows(), master({index}).as<float>());
    }
  }
  refresh_compute();
}

void ParameterStore::refresh_compute() {
  if (compute_.data != nullptr) {
    const float* from = master_.as<float>();
    std::uint16_t* to = compute_.as<std::uint16_t>();
    for (std::int64_t i = 0; i < layout_->elements(); ++i) to[i] = to_bfloat16(from[i]);
  }
  weights_changed();
}

Tensor ParameterStore::weight(ParameterId id) const {
  return compute_.defined() && layout_->slot(id).compute_copy ? view(compute_, id) : view(master_, id);
}

Tensor ParameterStore::view(const Tensor& flat, ParameterId id) const {
  Tensor part = flat;
  part.shape = (*list_)[id].memory_shape();
  if (flat.data != nullptr) part.data = static_cast<std::byte*>(flat.data) + layout_->slot(id).offset * size_of(flat.dtype);
  return part;
}

}  // namespace trireme::parallel
