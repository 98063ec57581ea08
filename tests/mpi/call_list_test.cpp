// SPDX-License-Identifier: Apache-2.0
//
// CallList at 2 to 4 ranks: executes recorded calls with MPI on host memory, as NCCL would execute
// them on a device.
// - Sums in tree order, along axes and in bfloat16 have the bits of MPI's.
// - The library's collectives produce the correct results, with even and uneven parts.

#include "comm/engine/call_list.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "comm/sums/all_reduce.hpp"
#include "comm/sums/axis_sum.hpp"
#include "comm/sums/bfloat16_sum.hpp"
#include "comm/sums/reduce_scatter.hpp"
#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/comm/engine/engine.hpp"

namespace trireme::comm {
namespace {

using Kind = CallList::Kind;

const Communicator& world() { return test_environment().world(); }
RankInGroup ranks() { return {world().rank(), world().size()}; }

/// Executes the calls of a list on host memory between the real ranks, in place of NCCL.
class HostExecutor {
 public:
  void run(const CallList& call_list) {
    for (const CallList::Call& call : call_list.calls()) execute(call);
    EXPECT_TRUE(requests_.empty()) << "the last calls of a plan are not ended";
  }

 private:
  static std::span<std::byte> bytes(void* data, std::int64_t count) {
    return {static_cast<std::byte*>(data), static_cast<std::size_t>(count)};
  }
  static const float* floats(const void* data) { return static_cast<const float*>(data); }

  static const BFloat16* narrow(const void* data) { return static_cast<const BFloat16*>(data); }

  std::vector<float> sum_of(const CallList::Call& call, std::int64_t count) {
    std::vector<float> sum(static_cast<std::size_t>(count));
    if (call.in_bfloat16)
      std::transform(narrow(call.from), narrow(call.from) + count, sum.begin(),
                     [](BFloat16 x) { return to_float(x); });
    else
      std::copy_n(floats(call.from), count, sum.begin());
    engine_.wait(
        engine_.all_reduce(world(), sum.data(), nullptr, count, SumOrder::library, "test"));
    return sum;
  }
  static void put(const CallList::Call& call, const float* from) {
    if (call.in_bfloat16)
      std::transform(from, from + call.count, static_cast<BFloat16*>(call.to), to_bfloat16);
    else
      std::copy_n(from, call.count, static_cast<float*>(call.to));
  }

  void execute(const CallList::Call& call) {
    const int rank = world().rank(), size = world().size();
    switch (call.kind) {
      case Kind::send:
        requests_.push_back(engine_.send(world(), bytes(const_cast<void*>(call.from), call.count),
                                         call.peer, 1, "test"));
        return;
      case Kind::receive:
        requests_.push_back(
            engine_.receive(world(), bytes(call.to, call.count), call.peer, 1, "test"));
        return;
      case Kind::all_reduce: put(call, sum_of(call, call.count).data()); return;
      case Kind::reduce: {
        const std::vector<float> sum = sum_of(call, call.count);
        if (call.peer == rank) put(call, sum.data());
        EXPECT_EQ(call.to != nullptr, call.peer == rank);
        return;
      }
      case Kind::reduce_scatter:
        put(call, sum_of(call, call.count * size).data() + rank * call.count);
        return;
      case Kind::all_gather: {
        EXPECT_EQ(call.from, static_cast<std::byte*>(call.to) + rank * call.count)
            << "not in place";
        const std::vector<std::byte> mine(static_cast<const std::byte*>(call.from),
                                          static_cast<const std::byte*>(call.from) + call.count);
        world().all_gather(mine, bytes(call.to, call.count * size));
        return;
      }
      case Kind::broadcast:
        EXPECT_EQ(call.from, call.to) << "not in place";
        world().broadcast(bytes(call.to, call.count), call.peer);
        return;
      case Kind::add:
        EXPECT_TRUE(requests_.empty()) << "a sum of what may still be coming";
        for (std::int64_t i = 0; i < call.count; ++i)
          static_cast<float*>(call.to)[i] += floats(call.from)[i];
        return;
      case Kind::copy:
        EXPECT_TRUE(requests_.empty()) << "a copy of what may still be coming";
        std::copy_n(floats(call.from), call.count, static_cast<float*>(call.to));
        return;
      case Kind::add_bfloat16:
        EXPECT_TRUE(requests_.empty()) << "a sum of what may still be coming";
        for (std::int64_t i = 0; i < call.count; ++i)
          static_cast<float*>(call.to)[i] += to_float(narrow(call.from)[i]);
        return;
      case Kind::add_float64:
        EXPECT_TRUE(requests_.empty()) << "a sum of what may still be coming";
        for (std::int64_t i = 0; i < call.count; ++i)
          static_cast<double*>(call.to)[i] += static_cast<const double*>(call.from)[i];
        return;
      case Kind::narrow:
        EXPECT_TRUE(requests_.empty()) << "what may still be on its way is written";
        for (std::int64_t i = 0; i < call.count; ++i)
          static_cast<BFloat16*>(call.to)[i] = to_bfloat16(floats(call.from)[i]);
        return;
      case Kind::widen:
        EXPECT_TRUE(requests_.empty()) << "of what may still be coming";
        for (std::int64_t i = 0; i < call.count; ++i)
          static_cast<float*>(call.to)[i] = to_float(narrow(call.from)[i]);
        return;
      case Kind::end_group:
        for (const Engine::Request request : requests_) engine_.wait(request);
        requests_.clear();
        return;
    }
  }

  Engine engine_{Engine::ProgressMode::polled};
  std::vector<Engine::Request> requests_;
};

/// Normal numbers, for which another order of additions has other bits.
std::vector<float> normals(std::int64_t count) {
  std::vector<float> part(static_cast<std::size_t>(count));
  const std::uint64_t key = random_key(7, "part " + std::to_string(world().rank()));
  for (std::size_t i = 0; i < part.size(); ++i) part[i] = static_cast<float>(normal_at(key, i));
  return part;
}

/// Whole numbers whose sums over four ranks are exact in any order, also in bfloat16 (at most 256).
std::vector<float> whole_numbers(std::int64_t count) {
  std::vector<float> part(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < part.size(); ++i)
    part[i] = static_cast<float>((i * 7 + static_cast<std::size_t>(world().rank()) * 3) % 61);
  return part;
}

/// Even, uneven, with empty parts, everything in one part, and a range that begins and ends inside.
std::vector<std::vector<std::int64_t>> bounds_of(std::int64_t count) {
  const int size = world().size();
  std::vector<std::vector<std::int64_t>> cases(5);
  for (int i = 0; i <= size; ++i) {
    cases[0].push_back(count / size * i);
    cases[1].push_back(count * i * i / (size * size));
    cases[2].push_back(i / 2 * 2 == size ? count : count * (i / 2) / size);
    cases[3].push_back(i == 0 ? 0 : count);
    cases[4].push_back(count / 3 + count / 3 * i / size);
  }
  return cases;
}

std::int64_t own(const std::vector<std::int64_t>& bounds) {
  return part_of(bounds, world().rank()).size();
}

// Sizes around min_halving_elements (4096), and one above MPI's eager limit: a send that blocks
// until its receive must be in one group with it.
const std::vector<std::int64_t> sizes{1, 31, 4095, 4096, 4097, 300007};

TEST(CallList, SumsInTreeOrderHaveTheBitsOfMpi) {
  Engine engine(Engine::ProgressMode::polled);
  HostExecutor executor;
  CallList call_list;
  for (const std::int64_t count : sizes) {
    const std::vector<float> part = normals(count);
    std::vector<float> by_mpi = part, by_call_list = part, scratch(part.size());
    engine.wait(
        engine.all_reduce(world(), by_mpi.data(), scratch.data(), count, SumOrder::tree, "test"));
    call_list.clear();
    call_list.record_steps(
        AllReduce(ranks(), by_call_list.data(), scratch.data(), count, SumOrder::tree));
    executor.run(call_list);
    EXPECT_EQ(std::memcmp(by_mpi.data(), by_call_list.data(), part.size() * sizeof(float)), 0)
        << count << " floats";
    for (const std::vector<std::int64_t>& bounds : bounds_of(count)) {
      std::vector<float> data = part,
                         least(static_cast<std::size_t>(bounds.back() - bounds.front())),
                         result(static_cast<std::size_t>(own(bounds)));
      call_list.clear();
      call_list.record_steps(ReduceScatter(ranks(), data.data() + bounds.front(), least.data(),
                                           bounds, result.data(), SumOrder::tree));
      executor.run(call_list);
      EXPECT_EQ(std::memcmp(result.data(),
                            by_mpi.data() + bounds[static_cast<std::size_t>(world().rank())],
                            result.size() * sizeof(float)),
                0)
          << count << " floats from " << bounds.front();
    }
  }
}

TEST(CallList, AxisSumsHaveTheBitsOfMpi) {
  Engine engine(Engine::ProgressMode::polled);
  HostExecutor executor;
  CallList call_list;
  const RankAxis axis{world().size(), 1};
  for (const std::int64_t count : {1, 13, 4097}) {
    const std::vector<float> part = normals(count);
    std::vector<double> by_mpi(part.begin(), part.end()), by_call_list = by_mpi,
                                                          scratch(part.size());
    engine.wait(engine.all_reduce(world(), by_mpi.data(), scratch.data(), count,
                                  std::span(&axis, 1), "test"));
    call_list.clear();
    call_list.record_steps(
        AxisSum(world().rank(), std::span(&axis, 1), by_call_list.data(), scratch.data(), count));
    executor.run(call_list);
    EXPECT_EQ(by_mpi, by_call_list) << count << " values";
  }
}

TEST(CallList, Bfloat16SumsHaveTheBitsOfMpi) {
  Engine engine(Engine::ProgressMode::polled);
  HostExecutor executor;
  CallList call_list;
  for (const std::int64_t count : sizes) {
    const std::vector<float> part = normals(count);
    std::vector<float> by_mpi = part, by_call_list = part;
    std::vector<BFloat16> wire(part.size());
    engine.wait(engine.all_reduce(world(), by_mpi.data(), wire.data(), count, SumOrder::tree,
                                  "test", TransferType::bfloat16));
    call_list.clear();
    call_list.record_steps(Bfloat16Sum(ranks(), by_call_list.data(), wire.data(), count));
    executor.run(call_list);
    EXPECT_EQ(by_mpi, by_call_list) << count << " floats";
    for (const std::vector<std::int64_t>& bounds : bounds_of(count)) {
      std::vector<float> data = part, again = part, result(static_cast<std::size_t>(own(bounds))),
                         expected = result;
      std::vector<BFloat16> least(static_cast<std::size_t>(bounds.back() - bounds.front()));
      engine.wait(engine.reduce_scatter(world(), data.data(), least.data(), bounds, expected.data(),
                                        SumOrder::tree, "test", TransferType::bfloat16));
      call_list.clear();
      call_list.record_steps(
          Bfloat16Sum(ranks(), again.data() + bounds.front(), least.data(), bounds, result.data()));
      executor.run(call_list);
      EXPECT_EQ(result, expected) << count << " floats from " << bounds.front();
    }
  }
}

TEST(CallList, LibraryCallsProduceTheCorrectResults) {
  HostExecutor executor;
  CallList call_list;
  for (const std::int64_t count : sizes) {
    const std::vector<float> part = whole_numbers(count);
    std::vector<float> sum = part;
    call_list.clear();
    call_list.record_library_all_reduce(ranks(), sum.data(), count);
    executor.run(call_list);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      std::size_t expected = 0;
      for (std::size_t rank = 0; rank < static_cast<std::size_t>(world().size()); ++rank)
        expected += (i * 7 + rank * 3) % 61;
      ASSERT_EQ(sum[i], static_cast<float>(expected)) << i;
    }
    std::vector<float> wired = part;
    std::vector<BFloat16> wire(part.size());
    const double whole_bytes = call_list.bytes_sent();
    call_list.clear();
    call_list.record_library_all_reduce(ranks(), wired.data(), count, wire.data());
    executor.run(call_list);
    EXPECT_EQ(wired, sum);
    EXPECT_DOUBLE_EQ(call_list.bytes_sent(), whole_bytes / 2);
    for (const std::vector<std::int64_t>& bounds : bounds_of(count)) {
      const std::int64_t first = bounds[static_cast<std::size_t>(world().rank())];
      std::vector<float> data = part, result(static_cast<std::size_t>(own(bounds)));
      call_list.clear();
      call_list.record_library_reduce_scatter(ranks(), data.data() + bounds.front(), bounds,
                                              result.data());
      executor.run(call_list);
      EXPECT_TRUE(std::equal(result.begin(), result.end(), sum.begin() + first))
          << count << " floats from " << bounds.front();
      data = part;
      std::vector<float> again(result.size());
      call_list.clear();
      call_list.record_library_reduce_scatter(ranks(), data.data() + bounds.front(), bounds,
                                              again.data(), wire.data());
      executor.run(call_list);
      EXPECT_EQ(again, result) << "as bfloat16, " << count << " floats from " << bounds.front();

      std::vector<std::byte> gathered(static_cast<std::size_t>(count), std::byte{255});
      for (std::int64_t i = first; i < first + own(bounds); ++i)
        gathered[static_cast<std::size_t>(i)] = static_cast<std::byte>(i % 251);
      call_list.clear();
      call_list.record_library_all_gather(ranks(), gathered.data() + bounds.front(), bounds);
      executor.run(call_list);
      for (std::int64_t i = 0; i < count; ++i) {
        const bool inside = bounds.front() <= i && i < bounds.back();
        ASSERT_EQ(gathered[static_cast<std::size_t>(i)],
                  inside ? static_cast<std::byte>(i % 251) : std::byte{255})
            << i << " of " << count;
      }
    }
  }
}

TEST(CallList, EvenPartsGoInOneCallOthersInOneForEachThatIsNotEmpty) {
  CallList call_list;
  std::vector<float> data(100), result(100);
  std::vector<std::int64_t> bounds(static_cast<std::size_t>(world().size()) + 1);
  std::iota(bounds.begin(), bounds.end(), 5);
  call_list.record_library_reduce_scatter(ranks(), data.data(), bounds, result.data());
  ASSERT_EQ(call_list.calls().size(), 2u);
  EXPECT_EQ(call_list.calls()[0].kind, Kind::reduce_scatter);
  EXPECT_EQ(call_list.calls()[0].count, 1);
  EXPECT_EQ(call_list.calls()[1].kind, Kind::end_group);
  const double of_one = sizeof(float) * (world().size() - 1);
  EXPECT_DOUBLE_EQ(call_list.bytes_sent(), of_one);

  bounds[1] = bounds[0];  // the first part is empty, the second has two elements
  call_list.clear();
  call_list.record_library_reduce_scatter(ranks(), data.data(), bounds, result.data());
  ASSERT_EQ(std::ssize(call_list.calls()), world().size() - 1 + 1);
  EXPECT_EQ(call_list.calls()[0].kind, Kind::reduce);
  EXPECT_EQ(call_list.calls()[0].peer, 1);
  EXPECT_EQ(call_list.calls()[0].count, 2);
  EXPECT_DOUBLE_EQ(call_list.bytes_sent(), of_one);
}

}  // namespace
}  // namespace trireme::comm
