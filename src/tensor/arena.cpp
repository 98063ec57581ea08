// SPDX-License-Identifier: Apache-2.0
#include "trireme/tensor/arena.hpp"

#include <algorithm>
#include <utility>

#include "trireme/base/check.hpp"

namespace trireme {

Arena::Arena(Device device, std::string name, std::int64_t capacity_bytes, Pages pages)
    : device_(device),
      name_(std::move(name)),
      storage_(device, static_cast<std::size_t>(capacity_bytes), name_, pages),
      capacity_(capacity_bytes) {}

Tensor Arena::allocate(DType type, const Shape& shape) {
  const std::int64_t bytes =
      (shape.elements() * size_of(type) + alignment - 1) / alignment * alignment;
  const bool meta = device_.kind == DeviceKind::meta;
  ensure(meta || used_ + bytes <= capacity_,
         "arena {}: {} bytes requested with {} of {} in use; the memory plan is too small, a bug "
         "in Trireme",
         name_, bytes, used_, capacity_);
  Tensor tensor{meta ? nullptr : storage_.data() + used_, type, device_.kind, shape};
  used_ += bytes;
  peak_ = std::max(peak_, used_);
  if (allocation_hook_ && !meta) allocation_hook_(tensor.data, bytes);
  return tensor;
}

}  // namespace trireme
