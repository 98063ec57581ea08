// SPDX-License-Identifier: Apache-2.0
#include "trireme/tensor/tensor.hpp"

namespace trireme {

std::string to_string(DType type) {
  switch (type) {
    case DType::float32: return "float32";
    case DType::bfloat16: return "bfloat16";
    case DType::float16: return "float16";
    case DType::float64: return "float64";
    case DType::uint8: return "uint8";
    case DType::uint16: return "uint16";
    case DType::int32: return "int32";
    case DType::int64: return "int64";
  }
  return "?";
}

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (int i = 0; i < shape.rank(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

Tensor Tensor::rows(std::int64_t begin, std::int64_t end) const {
  TRIREME_EXPECT(shape.rank() > 0 && 0 <= begin && begin <= end && end <= shape[0]);
  Tensor part = *this;
  part.shape[0] = end - begin;
  if (data != nullptr && shape[0] > 0)
    part.data = static_cast<std::byte*>(data) + bytes() / shape[0] * begin;
  return part;
}

}  // namespace trireme
