// SPDX-License-Identifier: Apache-2.0
//
// Conversions of the 16-bit types: every float16, rounding to nearest with ties to even, and values
// outside of the range.

#include "trireme/kernels/types.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace trireme::test {
namespace {

/// Returns the value of a code as IEEE 754 defines binary16.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31  ? (mantissa == 0 ? INFINITY : NAN)
                           : exponent == 0 ? std::ldexp(mantissa, -24)
                                           : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 != 0 ? -magnitude : magnitude;
}

TEST(Float16, EveryNumberHasTheValueOfItsBits) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const auto narrow = static_cast<std::uint16_t>(bits);
    const float wide = to_float(Float16{narrow});
    const double value = value_of(narrow);
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      const std::uint16_t back = to_float16(wide).bits;
      // The NaN is quiet.
      ASSERT_TRUE(std::isnan(value_of(back)) && (back & 0x200) != 0) << bits;
    } else {
      ASSERT_EQ(wide, value) << bits;
      ASSERT_EQ(std::signbit(wide), std::signbit(value)) << bits;
      ASSERT_EQ(to_float16(wide).bits, narrow);
    }
  }
}

TEST(Float16, RoundsToTheNearestAndTiesToEven) {
  for (std::uint32_t bits = 0; bits < 0x7C00; ++bits) {
    const auto low = static_cast<std::uint16_t>(bits), high = static_cast<std::uint16_t>(bits + 1),
               even = bits % 2 == 0 ? low : high;
    // The number that would follow instead of infinity.
    const double above = bits == 0x7BFF ? 65536 : value_of(high);
    const auto half = static_cast<float>((value_of(low) + above) / 2);
    ASSERT_EQ(to_float16(half).bits, even) << bits;
    ASSERT_EQ(to_float16(std::nextafter(half, 0.0f)).bits, low) << bits;
    ASSERT_EQ(to_float16(std::nextafter(half, INFINITY)).bits, high) << bits;
    ASSERT_EQ(to_float16(-half).bits, even | 0x8000) << bits;
  }
}

TEST(Float16, NumbersBeyondItsRangeBecomeInfinite) {
  using Limits = std::numeric_limits<float>;
  for (const float value : {65536.0f, 1e6f, Limits::max(), Limits::infinity()}) {
    EXPECT_EQ(to_float16(value).bits, 0x7C00);
    EXPECT_EQ(to_float16(-value).bits, 0xFC00);
  }
  for (const float value : {Limits::denorm_min(), Limits::min(), 1e-10f, 0x1p-26f}) {
    EXPECT_EQ(to_float16(value).bits, 0);
    EXPECT_EQ(to_float16(-value).bits, 0x8000);
  }
  for (const float value : {Limits::quiet_NaN(), Limits::signaling_NaN(), -Limits::quiet_NaN()})
    EXPECT_TRUE(std::isnan(value_of(to_float16(value).bits)));
}

TEST(ElementType, NamesAreTheTypes) {
  const auto bytes = [](ElementType type) {
    std::size_t size = 0;
    with_type(type, [&]<class T>(T) { size = sizeof(T); });
    return size;
  };
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16, ElementType::float16})
    EXPECT_EQ(bytes(type), size_of(type));
}

}  // namespace
}  // namespace trireme::test
