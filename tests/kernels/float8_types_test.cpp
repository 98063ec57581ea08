// SPDX-License-Identifier: Apache-2.0
//
// Conversions of the 8-bit types against tests/kernels/float8_reference.hpp.

#include <gtest/gtest.h>

#include <limits>

#include "float8_reference.hpp"

namespace trireme::test {
namespace {

template <class T>
class Float8Types : public testing::Test {};
using Both = testing::Types<Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(Float8Types, Both);

TYPED_TEST(Float8Types, EveryNumberHasTheValueOfItsBits) {
  for (int code = 0; code < 256; ++code) {
    const auto bits = static_cast<std::uint8_t>(code);
    const double value = float8_value<TypeParam>(bits);
    const float wide = to_float(TypeParam{bits});
    const std::uint8_t back = to_float8<TypeParam>(wide).bits;
    if (std::isnan(value)) {
      ASSERT_TRUE(std::isnan(wide)) << code;
    } else {
      ASSERT_EQ(wide, value) << code;
      ASSERT_EQ(std::signbit(wide), std::signbit(value)) << code;
    }
    if (std::isfinite(value)) {
      ASSERT_EQ(back, bits);
    } else {
      ASSERT_TRUE(std::isnan(float8_value<TypeParam>(back))) << code;
      ASSERT_EQ(back >> 7, bits >> 7);
    }
  }
  EXPECT_EQ(float8_value<TypeParam>(max_finite_code<TypeParam>),
            (std::is_same_v<TypeParam, Float8E4M3> ? 448 : 57344));
}

TYPED_TEST(Float8Types, RoundsToTheNearestAndTiesToEven) {
  for (std::uint8_t low = 0; low < max_finite_code<TypeParam>; ++low) {
    const std::uint8_t high = low + 1, even = low % 2 == 0 ? low : high;
    const auto half =
        static_cast<float>((float8_value<TypeParam>(low) + float8_value<TypeParam>(high)) / 2);
    ASSERT_EQ(to_float8<TypeParam>(half).bits, even) << int{low};
    ASSERT_EQ(to_float8<TypeParam>(std::nextafter(half, 0.0f)).bits, low) << int{low};
    ASSERT_EQ(to_float8<TypeParam>(std::nextafter(half, INFINITY)).bits, high) << int{low};
    ASSERT_EQ(to_float8<TypeParam>(-half).bits, even | 0x80) << int{low};
  }
}

TYPED_TEST(Float8Types, EveryBfloat16AsTheSearchSays) {
  for (std::uint32_t bits = 0; bits < 65536; ++bits) {
    const float value = to_float(BFloat16{static_cast<std::uint16_t>(bits)});
    const std::uint8_t expected = nearest_code<TypeParam>(value);
    ASSERT_EQ(to_float8<TypeParam>(value).bits, expected) << bits;
    ASSERT_EQ(pack_float8_pair<TypeParam>(value, 1),
              expected | static_cast<std::uint32_t>(nearest_code<TypeParam>(1)) << 8)
        << bits;
  }
}

TYPED_TEST(Float8Types, NumbersBeyondItsRangeBecomeTheGreatest) {
  using Limits = std::numeric_limits<float>;
  const auto greatest = static_cast<float>(float8_value<TypeParam>(max_finite_code<TypeParam>));
  for (const float value :
       {greatest, std::nextafter(greatest, INFINITY), 2 * greatest, Limits::max()}) {
    EXPECT_EQ(to_float8<TypeParam>(value).bits, max_finite_code<TypeParam>) << value;
    EXPECT_EQ(to_float8<TypeParam>(-value).bits, max_finite_code<TypeParam> | 0x80) << value;
  }
  for (const float value : {Limits::denorm_min(), Limits::min(), 1e-10f}) {
    EXPECT_EQ(to_float8<TypeParam>(value).bits, 0);
    EXPECT_EQ(to_float8<TypeParam>(-value).bits, 0x80);
  }
  for (const float value :
       {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(), Limits::signaling_NaN()})
    EXPECT_TRUE(std::isnan(float8_value<TypeParam>(to_float8<TypeParam>(value).bits))) << value;
}

}  // namespace
}  // namespace trireme::test
