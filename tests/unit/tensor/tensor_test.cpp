// SPDX-License-Identifier: Apache-2.0
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/tensor/tensor.hpp"

namespace trireme {
namespace {

using testing::EndsWith;

TEST(Shape, ExtentsAndProduct) {
  Shape shape{2, 3, 5};
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.back(), 5);
  shape.push_back(7);
  EXPECT_EQ(shape, (Shape{2, 3, 5, 7}));
  EXPECT_FALSE(shape == (Shape{2, 3, 5}));
  EXPECT_EQ(Shape{}.elements(), 1);
  EXPECT_EQ((Shape{4, 0}).elements(), 0);
  EXPECT_EQ(std::accumulate(shape.begin(), shape.end(), std::int64_t{0}), 17);
  EXPECT_EQ(to_string(shape), "[2, 3, 5, 7]");
  EXPECT_EQ(to_string(Shape{}), "[]");
}

TEST(DType, SizesAreThoseOfTheTypes) {
  EXPECT_EQ(size_of(DType::float32), static_cast<std::int64_t>(sizeof(float)));
  EXPECT_EQ(size_of(DType::float64), static_cast<std::int64_t>(sizeof(double)));
  EXPECT_EQ(size_of(DType::int64), static_cast<std::int64_t>(sizeof(std::int64_t)));
  for (const DType type : {DType::float32, DType::bfloat16, DType::float16, DType::float64,
                           DType::uint8, DType::uint16, DType::int32, DType::int64}) {
    EXPECT_NE(to_string(type), "?");
    // The name ends with its size in bits.
    const std::string bits = std::to_string(8 * size_of(type));
    EXPECT_THAT(to_string(type), EndsWith(bits));
  }
}

TEST(Tensor, RowsAreAWindow) {
  std::vector<float> values(24);
  std::iota(values.begin(), values.end(), 0.0f);
  const Tensor tensor{values.data(), DType::float32, DeviceKind::cpu, {4, 2, 3}};
  const Tensor part = tensor.rows(1, 3);
  EXPECT_EQ(part.shape, (Shape{2, 2, 3}));
  EXPECT_EQ(part.as<float>()[0], 6.0f);
  EXPECT_EQ(part.bytes(), 2 * 6 * 4);
  EXPECT_EQ(tensor.rows(4, 4).elements(), 0);
  EXPECT_EQ(tensor.reshaped({24}).rows(7, 8).as<float>()[0], 7.0f);
  EXPECT_FALSE(Tensor{}.defined());
}

TEST(Tensor, MetaRowsStayWithoutMemory) {
  const Tensor tensor{nullptr, DType::float32, DeviceKind::meta, {4, 2}};
  EXPECT_EQ(tensor.rows(1, 2).data, nullptr);
  EXPECT_EQ(tensor.rows(1, 2).shape, (Shape{1, 2}));
}

}  // namespace
}  // namespace trireme
