// SPDX-License-Identifier: Apache-2.0
//
// Collectives of the engine at 1 to 4 ranks, for every size and bounds of parts:
// - sums and reduce-scatters in tree order have the bits of the sum on one rank;
// - those of the library, and those that transfer bfloat16, agree within rounding;
// - gathers write the range that the bounds cover, and nothing else.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

#include "engine_fixture.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::comm {
namespace {

TEST_P(EngineFixture, TreeSumIsTheSumOfTheParts) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  for (const std::int64_t count : sizes) {
    const DeviceArray<float> data = area(part_of(world().rank(), count, 1)), scratch = room(count);
    engine.wait(
        engine.all_reduce(world(), data.data(), scratch.data(), count, SumOrder::tree, "test"));
    const std::vector<float> expected = expected_sum(world().size(), count, 1), sum = data.values();
    EXPECT_EQ(std::memcmp(sum.data(), expected.data(), sum.size() * sizeof(float)), 0)
        << count << " floats: other bits than the sum in one place";
  }
}

/// Sums of float64 along the axes of several meshes; the last axis adds the sums of the others.
TEST_P(EngineFixture, AxisSumIsTheSumAlongTheAxes) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int ranks = world().size();
  std::vector<std::vector<RankAxis>> meshes{{{ranks, 1}}, {{1, 1}, {ranks, 1}}};
  if (ranks == 4) meshes.push_back({{2, 2}, {2, 1}});
  for (const std::vector<RankAxis>& axes : meshes) {
    for (const std::int64_t count : {1, 13, 4097}) {
      std::vector<std::vector<double>> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<float> part = part_of(rank, count, 12);
        parts.emplace_back(part.begin(), part.end());
        for (double& value : parts.back()) value = std::exp(10 * value);
      }
      const DeviceArray<double> values = area(parts[static_cast<std::size_t>(world().rank())]),
                                scratch = area(std::vector<double>(parts[0].size()));
      engine.wait(engine.all_reduce(world(), values.data(), scratch.data(), count, axes, "test"));
      std::vector<double> expected(parts[0].size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        std::vector<double> column;
        for (const std::vector<double>& part : parts) column.push_back(part[i]);
        expected[i] = tree_sum(std::span<const double>(column));
        if (axes[0].stride == 2) expected[i] = (column[0] + column[2]) + (column[1] + column[3]);
      }
      EXPECT_EQ(values.values(), expected) << count << " values";
    }
  }
}

TEST_P(EngineFixture, LibrarySumAgreesWithinRounding) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  for (const std::int64_t count : sizes) {
    const DeviceArray<float> data = area(part_of(world().rank(), count, 2));
    engine.wait(engine.all_reduce(world(), data.data(), nullptr, count, SumOrder::library, "test"));
    const std::vector<float> expected = expected_sum(world().size(), count, 2), sum = data.values();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      // Two orders of n - 1 additions of normal numbers (< 6): each is off by at most (n - 1) half
      // units in the last place of partial sums < 6 n.
      const float bound = 2.0f * static_cast<float>(world().size()) * 6.0f *
                          static_cast<float>(world().size()) * 0x1p-24f;
      ASSERT_NEAR(sum[i], expected[i], bound) << i;
    }
  }
}

TEST_P(EngineFixture, TreeReduceScatterGivesTheBitsOfAllReduce) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  for (const std::int64_t count : sizes) {
    const std::vector<float> part = part_of(world().rank(), count, 4);
    const DeviceArray<float> data = area(part), scratch = room(count);
    engine.wait(
        engine.all_reduce(world(), data.data(), scratch.data(), count, SumOrder::tree, "test"));
    const std::vector<float> sum = data.values();
    for (const std::vector<std::int64_t>& bounds : bounds_of(world().size(), count)) {
      const auto mine = static_cast<std::size_t>(world().rank());
      const DeviceArray<float> whole = area(part), own = room(bounds[mine + 1] - bounds[mine]);
      // Exactly the documented amount of scratch.
      const DeviceArray<float> least = room(bounds.back() - bounds.front());
      engine.wait(engine.reduce_scatter(world(), whole.data(), least.data(), bounds, own.data(),
                                        SumOrder::tree, "test"));
      const std::vector<float> result = own.values(), left = whole.values();
      EXPECT_TRUE(result.empty() || std::memcmp(result.data(), sum.data() + bounds[mine],
                                                result.size() * sizeof(float)) == 0)
          << count << " floats, from " << bounds[mine] << " to " << bounds[mine + 1];
      EXPECT_TRUE(std::equal(part.begin(), part.begin() + bounds.front(), left.begin()))
          << "what stands before the range was touched";
      EXPECT_TRUE(
          std::equal(part.begin() + bounds.back(), part.end(), left.begin() + bounds.back()))
          << "what stands behind the range was touched";
    }
  }
}

TEST_P(EngineFixture, LibraryReduceScatterAgreesWithinRounding) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  for (const std::int64_t count : sizes) {
    const std::vector<float> part = part_of(world().rank(), count, 5),
                             expected = expected_sum(world().size(), count, 5);
    for (const std::vector<std::int64_t>& bounds : bounds_of(world().size(), count)) {
      const auto mine = static_cast<std::size_t>(world().rank());
      const DeviceArray<float> data = area(part), own = room(bounds[mine + 1] - bounds[mine]);
      engine.wait(engine.reduce_scatter(world(), data.data(), nullptr, bounds, own.data(),
                                        SumOrder::library, "test"));
      const std::vector<float> result = own.values();
      for (std::size_t i = 0; i < result.size(); ++i) {
        // As for the sum, above.
        const float bound = 2.0f * static_cast<float>(world().size()) * 6.0f *
                            static_cast<float>(world().size()) * 0x1p-24f;
        ASSERT_NEAR(result[i], expected[static_cast<std::size_t>(bounds[mine]) + i], bound) << i;
      }
    }
  }
}

std::vector<BFloat16> bfloat16_buffer(std::int64_t count) {
  return std::vector<BFloat16>(static_cast<std::size_t>(count));
}
float rounded(float value) { return to_float(to_bfloat16(value)); }

/// bfloat16 has 8 bits of precision: rounding changes a number by at most 2^-8 of its magnitude.
TEST_P(EngineFixture, Bfloat16SumsAgreeWithinRoundingAndAreEqualOnAllRanks) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int ranks = world().size();
  for (const SumOrder order : {SumOrder::library, SumOrder::tree}) {
    for (const std::int64_t count : sizes) {
      const DeviceArray<float> data = area(part_of(world().rank(), count, 8));
      const DeviceArray<BFloat16> wire = area(bfloat16_buffer(count));
      engine.wait(engine.all_reduce(world(), data.data(), wire.data(), count, order, "test",
                                    TransferType::bfloat16));
      const std::vector<float> sum = data.values();
      std::vector<std::vector<float>> parts;
      for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of(rank, count, 8));
      for (std::size_t i = 0; i < sum.size(); ++i) {
        double exact = 0, magnitude = 0;
        for (const std::vector<float>& part : parts) {
          exact += part[i];
          magnitude += std::abs(part[i]);
        }
        if (ranks == 1) {
          EXPECT_EQ(sum[i], parts[0][i]) << "who is alone rounds nothing";
          continue;
        }
        // Each part is rounded, then their sum, which already has this error. Float32 additions add
        // a little.
        const double of_parts = 0x1p-8 * magnitude + ranks * 0x1p-23 * magnitude;
        EXPECT_LE(std::abs(sum[i] - exact), of_parts + 0x1p-8 * (std::abs(exact) + of_parts)) << i;
        EXPECT_EQ(sum[i], rounded(sum[i])) << i;
      }
      std::vector<float> all(sum.size() * static_cast<std::size_t>(ranks));
      world().all_gather(std::as_bytes(std::span(sum)), std::as_writable_bytes(std::span(all)));
      for (std::size_t begin = 0; begin < all.size(); begin += sum.size())
        EXPECT_EQ(std::memcmp(all.data() + begin, sum.data(), sum.size() * sizeof(float)), 0)
            << "other bits at rank " << begin / sum.size();
    }
  }
}

TEST_P(EngineFixture, Bfloat16ReduceScatterAddsInFloat32InRankOrder) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int ranks = world().size(), rank = world().rank();
  for (const SumOrder order : {SumOrder::library, SumOrder::tree}) {
    for (const std::int64_t count : sizes) {
      std::vector<std::vector<float>> parts;
      for (int other = 0; other < ranks; ++other) parts.push_back(part_of(other, count, 9));
      for (const std::vector<std::int64_t>& bounds : bounds_of(ranks, count)) {
        const auto mine = static_cast<std::size_t>(rank);
        const DeviceArray<float> whole = area(parts[mine]),
                                 own = room(bounds[mine + 1] - bounds[mine]);
        const DeviceArray<BFloat16> wire = area(bfloat16_buffer(bounds.back() - bounds.front()));
        engine.wait(engine.reduce_scatter(world(), whole.data(), wire.data(), bounds, own.data(),
                                          order, "test", TransferType::bfloat16));
        const std::vector<float> result = own.values(), left = whole.values();
        for (std::size_t i = 0; i < result.size(); ++i) {
          const std::size_t at = static_cast<std::size_t>(bounds[mine]) + i;
          float expected = parts[mine][at];
          for (int before = 1; before < ranks; ++before)
            expected +=
                rounded(parts[static_cast<std::size_t>((rank - before + ranks) % ranks)][at]);
          EXPECT_EQ(result[i], expected) << count << " floats from " << bounds.front() << ", " << i;
        }
        EXPECT_TRUE(std::equal(left.begin(), left.begin() + bounds.front(), parts[mine].begin()))
            << "what stands before the range was touched";
        EXPECT_TRUE(std::equal(left.begin() + bounds.back(), left.end(),
                               parts[mine].begin() + bounds.back()))
            << "what stands behind the range was touched";
      }
    }
  }
}

TEST_P(EngineFixture, Bfloat16SumsPreserveNonFiniteValues) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const float infinity = std::numeric_limits<float>::infinity(),
              largest = std::numeric_limits<float>::max();
  for (const float value :
       {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), largest}) {
    for (int holder = 0; holder < world().size(); ++holder) {
      std::vector<float> part(100, 1.0f);
      if (world().rank() == holder) part[57] = value;
      const DeviceArray<float> data = area(part);
      const DeviceArray<BFloat16> wire = area(bfloat16_buffer(100));
      engine.wait(engine.all_reduce(world(), data.data(), wire.data(), 100, SumOrder::library,
                                    "test", TransferType::bfloat16));
      const std::vector<float> sum = data.values();
      // The largest float32 rounds to infinity in bfloat16.
      EXPECT_FALSE(std::isfinite(sum[57])) << value << " of rank " << holder;
      EXPECT_EQ(sum[56], static_cast<float>(world().size()));
    }
  }
}

TEST_P(EngineFixture, Bfloat16SumsSendHalfTheBytes) {
  const std::int64_t count = 20011;
  const auto sent_by_all = [&](TransferType wire) {
    Engine engine(progress_mode());
    engine.attach_device(stream());
    const DeviceArray<float> data = area(part_of(world().rank(), count, 1)), own = room(count);
    const DeviceArray<BFloat16> narrow = area(bfloat16_buffer(count));
    engine.wait(engine.all_reduce(world(), data.data(), narrow.data(), count, SumOrder::library,
                                  "test", wire));
    engine.wait(engine.reduce_scatter(world(), data.data(), narrow.data(),
                                      bounds_of(world().size(), count)[1], own.data(),
                                      SumOrder::library, "test", wire));
    engine.quiesce();
    double bytes = engine.bytes_sent();
    world().all_reduce(std::span(&bytes, 1), Reduction::sum);
    return bytes;
  };
  const double whole = sent_by_all(TransferType::float32),
               half = sent_by_all(TransferType::bfloat16);
  EXPECT_NEAR(whole, 3.0 * 4 * static_cast<double>(count) * (world().size() - 1), 1e-6 * whole);
  EXPECT_NEAR(half, whole / 2, 1e-6 * whole);
}

TEST_P(EngineFixture, AllGatherBringsPartsOfAnySize) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  for (const std::int64_t count : sizes) {
    for (const std::vector<std::int64_t>& bounds : bounds_of(world().size(), count)) {
      std::vector<std::byte> data(static_cast<std::size_t>(count), std::byte{255});
      for (std::int64_t i = bounds[static_cast<std::size_t>(world().rank())];
           i < bounds[static_cast<std::size_t>(world().rank()) + 1]; ++i) {
        data[static_cast<std::size_t>(i)] = byte_at(i, 0);
      }
      const DeviceArray<std::byte> gathered = area(data);
      engine.wait(engine.all_gather(world(), gathered.data(), bounds, "test"));
      data = gathered.values();
      for (std::int64_t i = 0; i < count; ++i) {
        const bool inside = bounds.front() <= i && i < bounds.back();
        ASSERT_EQ(data[static_cast<std::size_t>(i)], inside ? byte_at(i, 0) : std::byte{255})
            << "byte " << i << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace trireme::comm
