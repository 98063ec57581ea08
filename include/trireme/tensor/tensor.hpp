// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "trireme/base/expect.hpp"
#include "trireme/device/device.hpp"

namespace trireme {

enum class DType : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  uint8,
  uint16,
  int32,
  int64
};

/// Returns the size of one element in bytes.
constexpr std::int64_t size_of(DType type) {
  switch (type) {
    case DType::float64:
    case DType::int64: return 8;
    case DType::float32:
    case DType::int32: return 4;
    case DType::bfloat16:
    case DType::float16:
    case DType::uint16: return 2;
    case DType::uint8: return 1;
  }
  return 0;
}

/// Returns the name of the type, such as "bfloat16".
std::string to_string(DType type);

/// Up to six extents, outermost first.
class Shape {
 public:
  static constexpr int max_rank = 6;
  constexpr Shape() = default;
  constexpr Shape(std::initializer_list<std::int64_t> extents) {
    TRIREME_EXPECT(extents.size() <= max_rank);
    for (const std::int64_t extent : extents) extents_[rank_++] = extent;
  }

  constexpr int rank() const { return rank_; }
  constexpr std::int64_t operator[](int i) const { return extents_[i]; }
  constexpr std::int64_t& operator[](int i) { return extents_[i]; }
  constexpr void push_back(std::int64_t extent) { extents_[rank_++] = extent; }
  constexpr std::int64_t back() const { return extents_[rank_ - 1]; }
  constexpr const std::int64_t* begin() const { return extents_.data(); }
  constexpr const std::int64_t* end() const { return extents_.data() + rank_; }
  /// Returns the product of all extents; 1 for a scalar.
  constexpr std::int64_t elements() const {
    std::int64_t product = 1;
    for (int i = 0; i < rank_; ++i) product *= extents_[i];
    return product;
  }
  constexpr bool operator==(const Shape& other) const {
    if (rank_ != other.rank_) return false;
    for (int i = 0; i < rank_; ++i) {
      if (extents_[i] != other.extents_[i]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, max_rank> extents_{};
  int rank_ = 0;
};

/// Returns "[128, 28, 28, 64]".
std::string to_string(const Shape& shape);

/// A view of contiguous elements in row-major order. It does not own memory; an Arena usually does.
/// Images are [batch, height, width, channels]. On the meta device `data` is null.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::float32;
  DeviceKind device = DeviceKind::cpu;
  Shape shape;

  std::int64_t elements() const { return shape.elements(); }
  std::int64_t bytes() const { return elements() * size_of(dtype); }
  /// Returns false for a default-constructed tensor.
  bool defined() const { return shape.rank() > 0; }
  template <class T>
  T* as() const {
    TRIREME_EXPECT(static_cast<std::int64_t>(sizeof(T)) == size_of(dtype));
    return static_cast<T*>(data);
  }
  /// Returns the same elements with another shape of equal size.
  Tensor reshaped(const Shape& other) const {
    TRIREME_EXPECT(other.elements() == elements());
    return {data, dtype, device, other};
  }
  /// Returns a view of rows [begin, end) of the first dimension.
  Tensor rows(std::int64_t begin, std::int64_t end) const;
};

}  // namespace trireme
