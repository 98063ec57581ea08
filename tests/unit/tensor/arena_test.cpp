// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Arena, HandsOutAlignedPiecesThatDoNotOverlap) {
  Arena arena({DeviceKind::cpu, 0}, "activations", 4096);
  const Tensor a = arena.allocate(DType::uint8, {3}), b = arena.allocate(DType::float32, {17}),
               c = arena.allocate(DType::bfloat16, {2, 5});
  std::uintptr_t end = 0;
  for (const Tensor& tensor : {a, b, c}) {
    const auto begin = reinterpret_cast<std::uintptr_t>(tensor.data);
    EXPECT_EQ(begin % Arena::alignment, 0u);
    EXPECT_GE(begin, end);
    end = begin + static_cast<std::uintptr_t>(tensor.bytes());
  }
  EXPECT_EQ(c.shape, (Shape{2, 5}));
  EXPECT_EQ(c.dtype, DType::bfloat16);
}

TEST(Arena, ScopesGiveBackAndThePeakStays) {
  Arena arena({DeviceKind::cpu, 0}, "workspace", 4096);
  const Tensor kept = arena.allocate(DType::float32, {16});
  void* first = nullptr;
  for (int round = 0; round < 100; ++round) {  // far more than the capacity in total
    const ArenaScope scope(arena);
    const Tensor piece = arena.allocate(DType::float32, {500});
    if (round == 0) first = piece.data;
    EXPECT_EQ(piece.data, first);
    EXPECT_NE(piece.data, kept.data);
  }
  EXPECT_EQ(arena.used_bytes(), 64);
  EXPECT_GE(arena.peak_bytes(), 64 + 2000);
  EXPECT_LE(arena.peak_bytes(), arena.capacity_bytes());
}

TEST(Arena, RefusesTensorsThatDoNotFitAndNamesItself) {
  Arena arena({DeviceKind::cpu, 0}, "gradients", 1024);
  arena.allocate(DType::float32, {128});
  EXPECT_THAT([&] { arena.allocate(DType::float32, {129}); },
              ThrowsMessage<Failure>(HasSubstr("gradients")));
  EXPECT_NE(arena.allocate(DType::float32, {128}).data, nullptr)
      << "the refused piece took nothing";
}

TEST(Arena, MetaMeasuresTheNeedOfTheRealOne) {
  const auto fill = [](Arena& arena) {
    arena.allocate(DType::float64, {3, 3});
    const ArenaScope scope(arena);
    arena.allocate(DType::int32, {77});
  };
  Arena planned({DeviceKind::meta, 0}, "plan", 0);
  fill(planned);
  EXPECT_EQ(planned.allocate(DType::float32, {1}).data, nullptr);
  Arena exact({DeviceKind::cpu, 0}, "exact", planned.peak_bytes());
  EXPECT_NO_THROW(fill(exact));
  Arena short_by_one({DeviceKind::cpu, 0}, "short", planned.peak_bytes() - 1);
  EXPECT_THROW(fill(short_by_one), Failure);
}

}  // namespace
}  // namespace trireme
