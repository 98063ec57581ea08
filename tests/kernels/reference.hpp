#pragma once

// What the tests of the ops share: memory and a context, random tensors, and comparison with plain double-precision references.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/base/philox.hpp"
#include "trireme/kernels/types.hpp"
#include "trireme/ops/context.hpp"

namespace trireme::test {

using Values = std::vector<double>;

/// Value `index` of a tensor, whatever its type.
inline double value_at(const Tensor& t, std::int64_t index) {
  switch (t.dtype) {
    case DType::float32: return t.as<float>()[index];
    case DType::float64: return t.as<double>()[index];
    case DType::bfloat16: return to_float(t.as<BFloat16>()[index]);
    case DType::uint8: return t.as<std::uint8_t>()[index];
    case DType::int32: return t.as<std::int32_t>()[index];
    case DType::int64: return static_cast<double>(t.as<std::int64_t>()[index]);
    case DType::float16: break;
  }
  ADD_FAILURE() << "no float16 here";
  return 0;
}

inline void set_value(const Tensor& t, std::int64_t index, double value) {
  switch (t.dtype) {
    case DType::float32: t.as<float>()[index] = static_cast<float>(value); return;
    case DType::float64: t.as<double>()[index] = value; return;
    case DType::bfloat16: t.as<BFloat16>()[index] = to_bfloat16(static_cast<float>(value)); return;
    case DType::uint8: t.as<std::uint8_t>()[index] = static_cast<std::uint8_t>(value); return;
    case DType::int32: t.as<std::int32_t>()[index] = static_cast<std::int32_t>(value); return;
    case DType::int64: t.as<std::int64_t>()[index] = static_cast<std::int64_t>(value); return;
    case DType::float16: break;
  }
  ADD_FAILURE() << "no float16 here";
}

inline Values values(const Tensor& t) {
  Values result(static_cast<std::size_t>(t.elements()));
  for (std::int64_t i = 0; i < t.elements(); ++i) result[i] = value_at(t, i);
  return result;
}

inline void assign(const Tensor& t, const Values& v) {
  ASSERT_EQ(t.elements(), static_cast<std::int64_t>(v.size()));
  for (std::int64_t i = 0; i < t.elements(); ++i) set_value(t, i, v[i]);
}

inline double dot(const Values& a, const Values& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Largest relative rounding error of storing a number in `type` (half a unit in the last place).
inline double unit_roundoff(DType type) { return type == DType::bfloat16 ? 0x1p-8 : type == DType::float64 ? 0x1p-53 : 0x1p-24; }

/// |actual - expected| <= absolute + relative * |expected| at every element; the worst offender is named.
inline void expect_close(const Tensor& actual, const Values& expected, double absolute, double relative = 0, const std::string& what = "") {
  ASSERT_EQ(actual.elements(), static_cast<std::int64_t>(expected.size())) << what;
  double worst = 0;
  std::int64_t place = -1;
  for (std::int64_t i = 0; i < actual.elements(); ++i) {
    const double excess = std::abs(value_at(actual, i) - expected[i]) / (absolute + relative * std::abs(expected[i]) + 1e-300);
    if (!(excess <= worst)) {  // a NaN too is an offender
      worst = excess;
      place = i;
    }
  }
  EXPECT_TRUE(worst <= 1) << what << ": element " << place << " of " << to_string(actual.shape) << " is " << value_at(actual, place)
                          << ", expected " << expected[place] << "; off by " << worst << " tolerances";
}

/// |actual - expected| <= bounds at every element; the worst offender is named.
inline void expect_within(const Tensor& actual, const Values& expected, const Values& bounds, const std::string& what = "") {
  ASSERT_EQ(actual.elements(), static_cast<std::int64_t>(expected.size())) << what;
  double worst = 0;
  std::int64_t place = -1;
  for (std::int64_t i = 0; i < actual.elements(); ++i) {
    const double excess = std::abs(value_at(actual, i) - expected[i]) / (bounds[i] + 1e-300);
    if (!(excess <= worst)) {
      worst = excess;
      place = i;
    }
  }
  EXPECT_TRUE(worst <= 1) << what << ": element " << place << " of " << to_string(actual.shape) << " is " << value_at(actual, place)
                          << ", expected " << expected[place] << "; off by " << worst << " tolerances";
}

/// Bounds of a sum of `terms` products in float32 stored in `type` (Higham 2002, section 3.1): terms * u * sum of |products|, and the
/// rounding of the result. `magnitudes`: for each element the sum of the products' absolute values.
inline Values sum_bounds(const Values& expected, const Values& magnitudes, double terms, DType type) {
  Values bounds(expected.size());
  for (std::size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = (terms + 1) * unit_roundoff(DType::float32) * magnitudes[i] + unit_roundoff(type) * std::abs(expected[i]) * 1.01;
  }
  return bounds;
}

inline Values magnitudes(Values v) {
  for (double& x : v) x = std::abs(x);
  return v;
}

inline void expect_same_bytes(const Tensor& a, const Tensor& b, const std::string& what = "") {
  ASSERT_EQ(a.bytes(), b.bytes()) << what;
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())), 0) << what;
}

/// Memory and a context on one device: the CPU, or `meta` asked about the CPU.
class Fixture {
 public:
  static constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
  explicit Fixture(DeviceKind kind = DeviceKind::cpu, std::int64_t capacity_bytes = 128 * mebibyte)
      : tensors({kind, 0}, "tensors", capacity_bytes), workspace({kind, 0}, "workspace", capacity_bytes),
        library({kind, 0}, "library", capacity_bytes), context(Stream{{kind, 0}, nullptr}, workspace, library, DeviceKind::cpu) {}

  Tensor make(DType type, const Shape& shape) { return tensors.allocate(type, shape); }
  /// Standard normal numbers times `scale`, rounded to `type`: a function of the name. On meta only the place.
  Tensor random(DType type, const Shape& shape, std::string_view name, double scale = 1) {
    const Tensor t = make(type, shape);
    if (t.data == nullptr) return t;
    const std::uint64_t key = random_key(1, name);
    for (std::int64_t i = 0; i < t.elements(); ++i) set_value(t, i, scale * normal_at(key, static_cast<std::uint64_t>(i)));
    return t;
  }
  Tensor filled(DType type, const Shape& shape, double value) {
    const Tensor t = make(type, shape);
    if (t.data != nullptr) assign(t, Values(static_cast<std::size_t>(t.elements()), value));
    return t;
  }
  Tensor copy_of(const Tensor& other) {
    const Tensor t = make(other.dtype, other.shape);
    if (t.data != nullptr) std::memcpy(t.data, other.data, static_cast<std::size_t>(t.bytes()));
    return t;
  }

  Arena tensors, workspace, library;
  ops::Context context;
};

/// For tests that make many of them: taking the memory is most of their time.
class SmallFixture : public Fixture {
 public:
  explicit SmallFixture(DeviceKind kind = DeviceKind::cpu) : Fixture(kind, 8 * mebibyte) {}
};

/// Finite differences: the directional derivative of `loss` at x along v, by central differences of the double-precision reference.
template <class Loss>
double directional_derivative(const Loss& loss, const Values& x, const Values& v, double step = 1e-5) {
  Values plus = x, minus = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    plus[i] += step * v[i];
    minus[i] -= step * v[i];
  }
  return (loss(plus) - loss(minus)) / (2 * step);
}

}  // namespace trireme::test
