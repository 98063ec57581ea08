// Engine at 1 to 4 ranks, with and without its own thread, on host memory and on an emulated
// device:
// - sums, gathers and messages of every size are correct, in both orders and both transfer types;
// - groups and messages do not block each other, and long requests are cut into pieces;
// - steps allocate nothing, bytes and spans are counted, errors are thrown.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/mpi.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"
#include "trireme/comm/engine.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::comm {
namespace {

// 1, odd and prime sizes, sizes around min_halving_elements (4096), and one above the eager limit
// of MPI.
const std::vector<std::int64_t> sizes{1, 2, 3, 31, 1009, 4095, 4096, 4097, 20011, 300007};

const Communicator& world() { return test_environment().world(); }

/// Returns the part of `rank`: normal numbers, for which another order of additions has other bits.
std::vector<float> part_of(int rank, std::int64_t count, std::uint64_t seed) {
  std::vector<float> part(static_cast<std::size_t>(count));
  const std::uint64_t key = random_key(seed, "part " + std::to_string(rank));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(normal_at(key, i));
  return part;
}

/// Computes the sum in tree order on this rank alone.
std::vector<float> expected_sum(int ranks, std::int64_t count, std::uint64_t seed) {
  std::vector<std::vector<float>> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back(part_of(rank, count, seed));
  const bool power_of_two = (ranks & (ranks - 1)) == 0;
  std::vector<float> sum(static_cast<std::size_t>(count)), column(parts.size());
  for (std::size_t i = 0; i < sum.size(); ++i) {
    for (std::size_t rank = 0; rank < parts.size(); ++rank) column[rank] = parts[rank][i];
    sum[i] = column[0];
    for (std::size_t rank = 1; rank < parts.size(); ++rank) sum[i] += column[rank];
    if (power_of_two) sum[i] = tree_sum(std::span<const float>(column));
  }
  return sum;
}

/// Both progress modes, on memory of the host and of an emulated device.
class EngineFixture : public testing::TestWithParam<std::tuple<Engine::ProgressMode, DeviceKind>> {
 protected:
  static Engine::ProgressMode progress_mode() { return std::get<0>(GetParam()); }
  static bool on_host() { return in_host_memory(std::get<1>(GetParam())); }
  const Stream& stream() const { return stream_; }

  /// Values in the memory of the stream's device.
  template <class T>
  class DeviceArray {
   public:
    DeviceArray(const Stream& stream, const std::vector<T>& values)
        : stream_(stream),
          memory_(stream.device, values.size() * sizeof(T), "test"),
          size_(values.size()) {
      copy_bytes(stream_, memory_.data(), values.data(), memory_.bytes());
    }
    T* data() const { return reinterpret_cast<T*>(memory_.data()); }
    std::int64_t size() const { return static_cast<std::int64_t>(size_); }
    std::span<T> span() const { return {data(), size_}; }
    std::vector<T> values() const {
      std::vector<T> values(size_);
      copy_bytes(stream_, values.data(), memory_.data(), memory_.bytes());
      synchronize(stream_);
      return values;
    }

   private:
    Stream stream_;
    Allocation memory_;
    std::size_t size_;
  };
  template <class T>
  DeviceArray<T> area(const std::vector<T>& values) const {
    return {stream_, values};
  }
  DeviceArray<float> room(std::int64_t count) const {
    return area(std::vector<float>(static_cast<std::size_t>(count)));
  }

 private:
  OwnedStream stream_{Device{std::get<1>(GetParam()), 0}};
};

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

TEST_P(EngineFixture, ManyAtOnceInBothOrdersAndGroups) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const Communicator turned = world().split(0, -world().rank());
  const int requests = 40;  // several times max_started_collectives
  std::vector<DeviceArray<float>> data, scratch;
  std::vector<Engine::Request> requested;
  for (int i = 0; i < requests; ++i) {
    data.push_back(area(part_of(world().rank(), sizes[static_cast<std::size_t>(i) % sizes.size()],
                                static_cast<std::uint64_t>(i))));
    scratch.push_back(room(data.back().size()));
  }
  for (int i = 0; i < requests; ++i) {
    const auto at = static_cast<std::size_t>(i);
    requested.push_back(engine.all_reduce(i % 3 == 0 ? turned : world(), data[at].data(),
                                          scratch[at].data(), data[at].size(),
                                          i % 4 == 3 ? SumOrder::library : SumOrder::tree, "test"));
    engine.progress();
    // The main thread's own messages must not match those of the engine.
    if (i % 7 == 0) world().barrier();
  }
  engine.wait(requested[5]);
  engine.quiesce();
  EXPECT_TRUE(engine.describe().empty());
  for (int i = 0; i < requests; ++i) {
    const std::vector<float> sum = data[static_cast<std::size_t>(i)].values();
    const std::vector<float> expected = expected_sum(
        world().size(), static_cast<std::int64_t>(sum.size()), static_cast<std::uint64_t>(i));
    for (std::size_t k = 0; k < sum.size(); ++k)
      ASSERT_NEAR(sum[k], expected[k], 1e-4)
          // An element of another request differs by about 1.
          << "request " << i << ", element " << k;
  }
}

TEST_P(EngineFixture, DescribesPendingRequests) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<float> data = area(std::vector<float>(10, 1.0f)), scratch = room(10);
  const Engine::Request request = world().rank() == 0
                                      ? engine.all_reduce(world(), data.data(), scratch.data(), 10,
                                                          SumOrder::tree, "trireme/test/label")
                                      : 0;
  if (world().rank() == 0) {
    const std::vector<std::string> lines = engine.describe();
    ASSERT_EQ(lines.size(), 1u);  // no other rank has submitted its request yet
    EXPECT_NE(lines[0].find("all_reduce 1 trireme/test/label: 40 bytes over " +
                            std::to_string(world().size()) + " ranks, tree order, "),
              std::string::npos)
        << lines[0];
  }
  world().barrier();
  if (world().rank() != 0)
    engine.all_reduce(world(), data.data(), scratch.data(), 10, SumOrder::tree,
                      "trireme/test/label");
  engine.wait(request);
  engine.quiesce();
  EXPECT_EQ(data.values()[9], static_cast<float>(world().size()));
  EXPECT_GT(engine.bytes_sent(), 0);
  EXPECT_GE(engine.waited_seconds(), 0);
}

/// Bounds of parts within `count` elements, one list for each case: even; uneven; empty parts at
/// the start, inside and at the end; everything in one part; and a range that begins and ends
/// inside.
std::vector<std::vector<std::int64_t>> bounds_of(int ranks, std::int64_t count) {
  std::vector<std::vector<std::int64_t>> cases;
  const auto add_case = [&](auto&& bound) {
    cases.emplace_back();
    for (int i = 0; i <= ranks; ++i) cases.back().push_back(bound(i));
  };
  add_case([&](int i) { return count * i / ranks; });
  add_case([&](int i) { return count * i * i / (ranks * ranks); });
  add_case([&](int i) {
    // Every second part is empty.
    return i / 2 * 2 == ranks ? count : count * (i / 2) / ranks;
  });
  add_case([&](int i) { return i == ranks ? count : 0; });
  add_case([&](int i) { return i == 0 ? 0 : count; });
  add_case([&](int i) { return count / 3 + count / 3 * i / ranks; });
  return cases;
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
      EXPECT_EQ(
          std::memcmp(result.data(), sum.data() + bounds[mine], result.size() * sizeof(float)), 0)
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

std::byte byte_at(std::int64_t i, int seed) {
  return static_cast<std::byte>((i * 31 + i / 256 + seed * 7) & 0xff);
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

std::vector<std::byte> bytes_of(std::int64_t count, int seed) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) bytes[static_cast<std::size_t>(i)] = byte_at(i, seed);
  return bytes;
}

// Every rank first sends to all others, then receives from all: small messages, and messages above
// the eager limit, which MPI sends only once they are received.
TEST_P(EngineFixture, MessagesCross) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  for (const std::int64_t count : {1, 1000, 3000001}) {
    std::vector<DeviceArray<std::byte>> sent, received;
    for (int other = 0; other < size; ++other) {
      sent.push_back(area(bytes_of(count, rank * size + other)));
      received.push_back(area(bytes_of(count, 0)));
    }
    for (int other = 0; other < size; ++other) {
      if (other != rank)
        engine.send(world(), sent[static_cast<std::size_t>(other)].span(), other, 3, "test");
    }
    for (int other = 0; other < size; ++other) {
      if (other != rank)
        engine.wait(engine.receive(world(), received[static_cast<std::size_t>(other)].span(), other,
                                   3, "test"));
    }
    engine.quiesce();
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      EXPECT_EQ(received[static_cast<std::size_t>(other)].values(),
                bytes_of(count, other * size + rank))
          << count << " bytes from rank " << other;
    }
  }
}

TEST_P(EngineFixture, MessagesAreMatchedByTagThoseOfOneTagInOrder) {
  if (world().size() == 1) return;
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const std::vector<std::byte> first = bytes_of(500, 1), second = bytes_of(500, 2),
                               large = bytes_of(200000, 3);
  if (world().rank() == 0) {
    const DeviceArray<std::byte> a = area(first), b = area(second), c = area(large);
    engine.send(world(), a.span(), 1, 7, "test");
    engine.send(world(), b.span(), 1, 7, "test");
    engine.send(world(), c.span(), 1, (1 << 14) - 1, "test");
    engine.quiesce();
  }
  if (world().rank() == 1) {
    const DeviceArray<std::byte> a = area(bytes_of(500, 0)), b = area(bytes_of(500, 0)),
                                 c = area(bytes_of(200000, 0));
    // Sent last, received first.
    engine.wait(engine.receive(world(), c.span(), 0, (1 << 14) - 1, "test"));
    const Engine::Request request = engine.receive(world(), a.span(), 0, 7, "test");
    engine.wait(engine.receive(world(), b.span(), 0, 7, "test"));
    engine.wait(request);
    EXPECT_EQ(a.values(), first);
    EXPECT_EQ(b.values(), second);
    EXPECT_EQ(c.values(), large);
  }
}

// Receives of a pipeline may stay unmatched for long. They must delay neither later requests nor
// wait().
TEST_P(EngineFixture, PendingReceivesDelayNothingElse) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  const int from = (rank + 1) % size, to = (rank + size - 1) % size;
  const int late = size > 1 ? 20 : 0;  // more than max_started_collectives
  const DeviceArray<std::byte> sent = area(bytes_of(100000, rank));
  std::vector<DeviceArray<std::byte>> received;
  std::vector<Engine::Request> receives, requested;
  for (int i = 0; i < late; ++i) {
    received.push_back(area(bytes_of(sent.size(), size)));
    receives.push_back(
        engine.receive(world(), received.back().span(), from, 11 + i, "trireme/test/late"));
  }
  const int requests = 600, longest = 700;  // more than the initial slots
  std::vector<float> values;
  for (int i = 0; i < requests; ++i)
    values.insert(values.end(), longest, static_cast<float>(rank + i));
  const DeviceArray<float> data = area(values), scratch = room(data.size());
  for (int i = 0; i < requests; ++i) {
    requested.push_back(engine.all_reduce(world(), data.data() + i * longest,
                                          scratch.data() + i * longest, 50 + i,
                                          i % 2 == 0 ? SumOrder::tree : SumOrder::library, "test"));
  }
  for (int i = requests - 1; i >= 0; --i) engine.wait(requested[static_cast<std::size_t>(i)]);
  values = data.values();
  for (int i = 0; i < requests; ++i) {
    ASSERT_EQ(values[static_cast<std::size_t>(i * longest + 49 + i)],
              static_cast<float>(size * i + size * (size - 1) / 2))
        << "request " << i;
    ASSERT_EQ(values[static_cast<std::size_t>(i * longest + 50 + i)], static_cast<float>(rank + i))
        << "behind request " << i;
  }
  const std::vector<std::string> lines = engine.describe();
  ASSERT_EQ(std::ssize(lines), late);
  for (int i = 0; i < late; ++i) {
    EXPECT_EQ(lines[static_cast<std::size_t>(i)],
              "receive " + std::to_string(i + 1) + " trireme/test/late: 100000 bytes from rank " +
                  std::to_string(from) + ", tag " + std::to_string(11 + i) + ", under way");
  }
  world().barrier();  // no rank has sent anything before this point
  for (int i = 0; i < late; ++i) engine.send(world(), sent.span(), to, 11 + i, "test");
  for (const Engine::Request request : receives) engine.wait(request);
  for (const DeviceArray<std::byte>& message : received)
    EXPECT_EQ(message.values(), bytes_of(100000, from));
  engine.quiesce();
  EXPECT_TRUE(engine.describe().empty());
}

// Each pair of ranks is a group, and each rank submits to its groups in another order. One queue
// for all groups, or a small pool of places shared by groups, would deadlock.
TEST_P(EngineFixture, GroupsAreIndependent) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank(), each = 30;
  std::vector<Communicator> pairs;
  for (int a = 0; a < size; ++a) {
    for (int b = a + 1; b < size; ++b) {
      const Communicator pair = world().split(rank == a || rank == b ? 0 : -1, rank);
      if (rank == a || rank == b) pairs.push_back(pair);
      EXPECT_EQ(pair.size(), rank == a || rank == b ? 2 : 1);
    }
  }
  if (rank % 2 == 1) std::reverse(pairs.begin(), pairs.end());
  if (!pairs.empty())
    std::rotate(pairs.begin(), pairs.begin() + rank % std::ssize(pairs), pairs.end());
  const auto requests = static_cast<int>(pairs.size()) * each;
  std::vector<float> values;
  for (int i = 0; i < requests; ++i)
    values.insert(values.end(), 3000, static_cast<float>(i % each));
  const DeviceArray<float> data = area(values), scratch = room(data.size());
  std::vector<Engine::Request> requested;
  for (int i = 0; i < requests; ++i) {
    requested.push_back(engine.all_reduce(pairs[static_cast<std::size_t>(i / each)],
                                          data.data() + 3000 * i, scratch.data() + 3000 * i, 3000,
                                          i % 2 == 0 ? SumOrder::tree : SumOrder::library, "test"));
  }
  for (int i = requests; i-- > 0;) engine.wait(requested[static_cast<std::size_t>(i)]);
  values = data.values();
  for (std::size_t i = 0; i < values.size(); ++i)
    ASSERT_EQ(values[i], static_cast<float>(2 * (i / 3000 % each))) << "request " << i / 3000;
  world().barrier();
}

// A small limit for one MPI call: every request takes many calls.
TEST_P(EngineFixture, LongRequestsGoInPieces) {
  Engine engine(progress_mode(), 1000);
  engine.attach_device(stream());
  const std::int64_t count = 20011;
  const int size = world().size(), rank = world().rank();
  const std::vector<float> expected = expected_sum(size, count, 6);
  const std::vector<float> part = part_of(rank, count, 6);
  const DeviceArray<float> tree = area(part), by_library = area(part), scattered = area(part),
                           scratch = room(count), more_scratch = room(count);
  const std::vector<std::int64_t> bounds = bounds_of(size, count)[1];
  const DeviceArray<float> own =
      room(bounds[static_cast<std::size_t>(rank) + 1] - bounds[static_cast<std::size_t>(rank)]);
  std::vector<std::byte> bytes = bytes_of(count, 0);
  std::fill(bytes.begin(), bytes.begin() + bounds[static_cast<std::size_t>(rank)], std::byte{0});
  std::fill(bytes.begin() + bounds[static_cast<std::size_t>(rank) + 1], bytes.end(), std::byte{0});
  const DeviceArray<std::byte> gathered = area(bytes), sent = area(bytes_of(5500, rank)),
                               received = area(bytes_of(2 * 5500, 0));
  if (size > 1) {
    for (std::size_t i = 0; i < 2; ++i) {
      engine.send(world(), sent.span(), (rank + 1) % size, 1, "test");
      engine.receive(world(), received.span().subspan(i * 5500, 5500), (rank + size - 1) % size, 1,
                     "test");
    }
  }
  engine.all_reduce(world(), by_library.data(), nullptr, count, SumOrder::library, "test");
  engine.all_reduce(world(), tree.data(), scratch.data(), count, SumOrder::tree, "test");
  engine.reduce_scatter(world(), scattered.data(), more_scratch.data(), bounds, own.data(),
                        SumOrder::tree, "test");
  engine.all_gather(world(), gathered.data(), bounds, "test");
  engine.quiesce();
  const std::vector<float> library = by_library.values(), result = own.values();
  EXPECT_EQ(tree.values(), expected);
  for (std::size_t i = 0; i < library.size(); ++i)
    // Another element differs by about 1.
    ASSERT_NEAR(library[i], expected[i], 1e-4) << i;
  EXPECT_TRUE(std::equal(result.begin(), result.end(),
                         expected.begin() + bounds[static_cast<std::size_t>(rank)]));
  EXPECT_EQ(gathered.values(), bytes_of(count, 0));
  if (size == 1) return;
  std::vector<std::byte> due = bytes_of(5500, (rank + size - 1) % size);
  due.insert(due.end(), due.begin(), due.begin() + 5500);
  EXPECT_EQ(received.values(), due);
}

TEST_P(EngineFixture, AMessageOfAnotherLengthIsAFailure) {
  if (world().size() == 1) return;
  for (const std::size_t length : {4u, 16u}) {
    Engine engine(progress_mode());
    engine.attach_device(stream());
    const DeviceArray<std::byte> data = area(bytes_of(16, 0));
    if (world().rank() == 0)
      engine.wait(engine.send(world(), data.span().first(length), 1, 5, "test"));
    if (world().rank() == 1) {
      const auto received = [&] {
        engine.wait(engine.receive(world(), data.span().first(8), 0, 5, "test"));
      };
      EXPECT_THROW(received(), Failure) << length;
      EXPECT_THROW(engine.quiesce(), Failure) << "what failed once is not forgotten";
    }
  }
  EXPECT_EQ(world().all_reduce(1, Reduction::sum), world().size())
      << "the group is in step after all this";
}

TEST_P(EngineFixture, SteadyStepsAllocateNothing) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const int size = world().size(), rank = world().rank();
  const DeviceArray<float> data = area(part_of(rank, 20011, 3)), scratch = room(20011),
                           result = room(2 * 2001);
  const DeviceArray<std::byte> bytes = area(bytes_of(2001, 0)), sent = area(bytes_of(5000, 1)),
                               received = area(bytes_of(5000, 2));
  const std::vector<std::int64_t> bounds = bounds_of(size, 2001)[0];
  const auto step = [&] {
    if (size > 1) {
      engine.receive(world(), received.span(), (rank + 1) % size, 1, "test");
      engine.send(world(), sent.span(), (rank + size - 1) % size, 1, "test");
    }
    for (int bucket = 0; bucket < 10; ++bucket) {
      const std::int64_t begin = bucket * 2001;
      const SumOrder order = bucket % 2 == 0 ? SumOrder::tree : SumOrder::library;
      if (bucket < 8)
        engine.all_reduce(world(), data.data() + begin, scratch.data() + begin, 2001, order,
                          "test");
      else
        engine.reduce_scatter(world(), data.data() + begin, scratch.data() + begin, bounds,
                              result.data() + 2001 * (bucket - 8), order, "test");
      engine.progress();
    }
    engine.all_gather(world(), bytes.data(), bounds, "test");
    engine.quiesce();
  };
  step();
  world().barrier();  // no rank has sent anything before this point
  const std::int64_t before = allocations_so_far();
  const std::size_t staging_before = engine.staging_bytes();
  for (int i = 0; i < 100; ++i) step();  // reuses every slot
  // The emulated device itself allocates memory for its copies.
  if (on_host()) {
    EXPECT_EQ(allocations_so_far() - before, 0);
  }
  EXPECT_EQ(engine.staging_bytes(), staging_before);
  EXPECT_EQ(staging_before > 0, !on_host() && size > 1);
}

TEST_P(EngineFixture, GroupsOfOneAndAbsentGroupsAreDoneAtOnce) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<float> data = area<float>({1, 2, 3}), result = room(2);
  engine.wait(engine.all_reduce(Communicator(), data.data(), nullptr, 3, SumOrder::tree, "test"));
  EXPECT_EQ(
      engine.reduce_scatter(Communicator(), data.data(), nullptr, std::vector<std::int64_t>{1, 3},
                            result.data(), SumOrder::tree, "test"),
      0u);
  EXPECT_EQ(result.values(), (std::vector<float>{2, 3}));
  EXPECT_EQ(engine.all_gather(Communicator(), reinterpret_cast<std::byte*>(data.data()),
                              std::vector<std::int64_t>{0, 12}, "test"),
            0u);
  EXPECT_EQ(engine.reduce_scatter(Communicator(), nullptr, nullptr, std::vector<std::int64_t>{0, 7},
                                  nullptr, SumOrder::tree, "test"),
            0u);  // a plan's group of one
  EXPECT_EQ(data.values(), (std::vector<float>{1, 2, 3}));

  const auto counted = [&](auto&& request) {
    const Communicator absent = Communicator::meta(2, 4);
    EXPECT_EQ(request(absent), 0u);
    return absent.meta_bytes();
  };
  const std::vector<std::int64_t> bounds{100, 100, 300, 700, 1100};  // 1000 elements or bytes
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.all_reduce(absent, nullptr, nullptr, 1000, SumOrder::tree, "test");
            }),
            4000);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.reduce_scatter(absent, nullptr, nullptr, bounds, nullptr,
                                           SumOrder::tree, "test");
            }),
            3000);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.all_gather(absent, nullptr, bounds, "test");
            }),
            750);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.send(absent, {static_cast<const std::byte*>(nullptr), 500}, 1, 1,
                                 "test");
            }),
            500);
  EXPECT_EQ(counted([&](const Communicator& absent) {
              return engine.receive(absent, {static_cast<std::byte*>(nullptr), 500}, 1, 1, "test");
            }),
            0);
  EXPECT_EQ(engine.bytes_sent(), 0);
}

TEST_P(EngineFixture, CountsTheBytesItSends) {
  const int size = world().size(), rank = world().rank();
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const DeviceArray<std::byte> data = area(bytes_of(100 * size, 0));
  engine.wait(engine.all_gather(world(), data.data(), bounds_of(size, 100 * size)[0], "test"));
  EXPECT_EQ(engine.bytes_sent(), 100 * (size - 1));
  if (size > 1 && rank < 2)
    engine.wait(rank == 0 ? engine.send(world(), data.span(), 1, 0, "test")
                          : engine.receive(world(), data.span(), 0, 0, "test"));
  EXPECT_EQ(engine.bytes_sent(), 100 * (size - 1) + (size > 1 && rank == 0 ? 100 * size : 0));
}

// On a device, a request includes the earlier work of the compute stream, and later work after
// wait() sees its result, although its copies use other streams. A request on host memory does not
// overtake one of its group that is still being copied from the device.
TEST_P(EngineFixture, MemoryOfHostAndDeviceTakeTurns) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const std::int64_t count = 50000;
  const DeviceArray<float> data = room(count), copy = room(count);
  for (int round = 0; round < 20; ++round) {
    std::vector<float> first(static_cast<std::size_t>(count), static_cast<float>(round)),
        second(100, static_cast<float>(2 * round));
    copy_bytes(stream(), data.data(), first.data(), first.size() * sizeof(float));
    const Engine::Request large =
        engine.all_reduce(world(), data.data(), nullptr, count, SumOrder::library, "test");
    engine.wait(engine.all_reduce(world(), second.data(), nullptr, std::ssize(second),
                                  SumOrder::library, "test"));
    ASSERT_EQ(second.back(), static_cast<float>(2 * round * world().size()));
    engine.wait(large);
    copy_bytes(stream(), copy.data(), data.data(), first.size() * sizeof(float));
    ASSERT_EQ(copy.values().back(), static_cast<float>(round * world().size()));
  }
}

TEST_P(EngineFixture, WithoutGpusAllIsStaged) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const Engine::Connections connections{.groups = {world()}, .messages = world(), .routes = {}};
  EXPECT_EQ(engine.connect(world(), connections), Engine::Transport::staged);
  EXPECT_EQ(engine.connect(world(), connections, Engine::Transport::staged),
            Engine::Transport::staged);
  EXPECT_THROW(engine.connect(world(), connections, Engine::Transport::nccl), Failure);
  const DeviceArray<float> data = area(std::vector<float>(100, 1.0f));
  engine.wait(engine.all_reduce(world(), data.data(), nullptr, 100, SumOrder::library, "test"));
  EXPECT_EQ(data.values().back(), static_cast<float>(world().size()));
}

TEST_P(EngineFixture, RecordsSpansOnRequest) {
  Engine engine(progress_mode());
  engine.attach_device(stream());
  const auto sum = [&](std::string_view label) {
    const DeviceArray<float> data = area(part_of(world().rank(), 1009, 7));
    const double before = monotonic_seconds();
    engine.wait(engine.all_reduce(world(), data.data(), nullptr, 1009, SumOrder::library, label));
    engine.quiesce();
    return std::pair(before, monotonic_seconds());
  };
  sum("before");
  engine.record_spans(true);
  const auto [from, to] = sum("kept");
  const std::vector<Engine::Span> spans = engine.take_spans();
  EXPECT_EQ(spans.size(), world().size() > 1 ? 1u : 0u);  // one rank sends nothing
  for (const Engine::Span& span : spans) {
    EXPECT_EQ(span.label, "kept");
    EXPECT_LE(from, span.begin);
    EXPECT_LE(span.begin, span.end);
    EXPECT_LE(span.end, to);
  }
  engine.record_spans(false);
  sum("behind");
  EXPECT_TRUE(engine.take_spans().empty());
}

INSTANTIATE_TEST_SUITE_P(
    Drives, EngineFixture,
    testing::Combine(testing::Values(Engine::ProgressMode::polled, Engine::ProgressMode::thread),
                     testing::Values(DeviceKind::cpu, DeviceKind::emulated)),
    [](const auto& which) {
      const std::string progress_mode =
          std::get<0>(which.param) == Engine::ProgressMode::thread ? "thread" : "polled";
      return progress_mode + (in_host_memory(std::get<1>(which.param)) ? "_host" : "_device");
    });

TEST(Engine, HasAThreadWhereMpiAllowsIt) {
  EXPECT_EQ(Engine(Engine::ProgressMode::thread).progress_mode(),
            test_environment().thread_multiple() ? Engine::ProgressMode::thread
                                                 : Engine::ProgressMode::polled);
  EXPECT_EQ(Engine(Engine::ProgressMode::polled).progress_mode(), Engine::ProgressMode::polled);
}

}  // namespace
}  // namespace trireme::comm
