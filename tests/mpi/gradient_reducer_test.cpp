#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::parallel {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0};
constexpr int blocks = 5;

const comm::Communicator& world() { return test_environment().world(); }

/// Odd shapes, a block without parameters (3), several blocks in a bucket and one that is large by itself.
ParameterList make_list() {
  ParameterList list;
  list.begin_block(0);
  list.declare({.name = "a.weight", .shape = {7, 3, 3, 3}});
  list.declare({.name = "a.bias", .shape = {7}});
  list.begin_block(1);
  list.declare({.name = "b.weight", .shape = {101, 97}});
  list.begin_block(2);
  list.declare({.name = "c.weight", .shape = {13, 17}});
  list.begin_block(4);
  list.declare({.name = "e.weight", .shape = {5, 11}});
  list.declare({.name = "e.bias", .shape = {1}});
  return list;
}

/// The gradient that the micro-batch of this global index gives a flat buffer.
std::vector<float> gradient_of(const ParameterList& list, const FlatLayout& layout, std::int64_t micro_batch) {
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  for (std::size_t index = 0; index < list.entries().size(); ++index) {
    const std::uint64_t key = random_key(static_cast<std::uint64_t>(micro_batch), list.entries()[index].spec.name);
    const FlatLayout::Slot& slot = layout.slots()[index];
    for (std::int64_t i = 0; i < slot.elements; ++i) flat[static_cast<std::size_t>(slot.offset + i)] = static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i)));
  }
  return flat;
}

/// All that a rank needs to take steps.
struct Replica {
  Replica(Device device, const comm::Communicator& group, comm::Engine& engine, const GradientReducer::Options& options)
      : list(make_list()),
        layout(list, 1024),
        parameters(device, "parameters", 1 << 20),
        gradients(device, "gradients", 4 << 20),
        workspace(device, "workspace", 1 << 16),
        library(device, "library", 1 << 16),
        context(Stream{device}, workspace, library),
        store(list, layout, DType::float32, parameters, gradients),
        reducer(store, group, engine, options, gradients) {}

  /// A step with the gradients of this rank's micro-batches.
  void step(const std::vector<std::vector<float>>& micro_batches) {
    reducer.begin_step();
    for (std::size_t index = 0; index < micro_batches.size(); ++index) {
      const ops::Write write = reducer.begin_micro_batch(static_cast<std::int64_t>(index));
      for (int block = blocks - 1; block >= 0; --block) {
        backward(block, write, micro_batches[index]);
        reducer.block_done(context, block);
      }
    }
    reducer.finish(context);
  }

  void backward(int block, ops::Write write, const std::vector<float>& flat) {
    for (std::size_t index = 0; index < list.entries().size(); ++index) {
      if (list.entries()[index].block != block) continue;
      const FlatLayout::Slot& slot = layout.slots()[index];
      float* to = store.gradient({static_cast<std::int32_t>(index)}).as<float>();
      const float* from = flat.data() + slot.offset;
      for (std::int64_t i = 0; i < slot.elements; ++i) to[i] = write == ops::Write::assign ? from[i] : to[i] + from[i];
    }
  }

  ParameterList list;
  FlatLayout layout;
  Arena parameters, gradients, workspace, library;
  ops::Context context;
  ParameterStore store;
  GradientReducer reducer;
};

struct Case {
  comm::Engine::Drive drive;
  bool deterministic;
  std::int64_t per_rank;  ///< micro-batches of a rank a step
};

class Reducer : public testing::TestWithParam<Case> {
 protected:
  Reducer() : engine(GetParam().drive), replica(cpu, world(), engine, {GetParam().per_rank, GetParam().deterministic}) {
    for (std::int64_t i = 0; i < GetParam().per_rank * world().size(); ++i) all.push_back(gradient_of(replica.list, replica.layout, i));
    const auto first = all.begin() + world().rank() * GetParam().per_rank;
    mine.assign(first, first + GetParam().per_rank);
  }

  /// Element i of the step's gradient, made on this rank alone. A power of two of ranks: the tree over all micro-batches, which knows
  /// nothing of ranks. Else the ranks' trees in rank order.
  float expected(std::size_t i) const {
    std::vector<float> leaves;
    for (const std::vector<float>& gradient : all) leaves.push_back(gradient[i]);
    if ((world().size() & (world().size() - 1)) == 0) return tree_sum(std::span<const float>(leaves));
    float sum = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto per_rank = static_cast<std::size_t>(GetParam().per_rank);
      sum += tree_sum(std::span<const float>(leaves).subspan(static_cast<std::size_t>(rank) * per_rank, per_rank));
    }
    return sum;
  }

  comm::Engine engine;
  Replica replica;
  std::vector<std::vector<float>> all, mine;
};

TEST_P(Reducer, GivesTheSumOfAllMicroBatches) {
  ASSERT_GE(replica.layout.buckets().size(), 3u);
  for (int repeat = 0; repeat < 2; ++repeat) {  // the second finds what the first left behind
    replica.step(mine);
    const float* sum = replica.store.flat_gradient().as<float>();
    EXPECT_EQ(replica.store.gradient({0}).as<float>(), sum + replica.layout.slots()[0].offset);
    const float n = static_cast<float>(all.size());
    for (std::size_t i = 0; i < all[0].size(); ++i) {
      const float want = expected(i);
      if (GetParam().deterministic) {
        ASSERT_EQ(std::memcmp(&sum[i], &want, sizeof want), 0) << "element " << i << ": " << sum[i] << " and " << want;
      } else {
        ASSERT_NEAR(sum[i], want, n * n * 6 * 0x1p-23f) << "element " << i;  // n additions of partial sums below 6 n, in two orders
      }
    }
  }
}

TEST_P(Reducer, TakesAsManyBytesAsItsMetaTwin) {
  const comm::Communicator absent = world().size() == 1 ? comm::Communicator() : comm::Communicator::meta(world().rank(), world().size());
  Replica planned({DeviceKind::meta, 0}, absent, engine, {GetParam().per_rank, GetParam().deterministic});
  EXPECT_EQ(planned.gradients.used_bytes(), replica.gradients.used_bytes());
  EXPECT_EQ(planned.parameters.used_bytes(), replica.parameters.used_bytes());
  planned.reducer.begin_step();
  for (std::int64_t index = 0; index < GetParam().per_rank; ++index) {
    planned.reducer.begin_micro_batch(index);
    for (int block = blocks - 1; block >= 0; --block) planned.reducer.block_done(planned.context, block);
  }
  planned.reducer.finish(planned.context);
  EXPECT_EQ(absent.meta_bytes(), world().size() == 1 ? 0 : 4.0 * static_cast<double>(planned.layout.elements()));
}

TEST_P(Reducer, PlainStepsAllocateNothing) {
  if (GetParam().deterministic) GTEST_SKIP() << "Kokkos makes a string of each kernel's label; the engine's own test covers the tree order";
  replica.step(mine);
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < 10; ++i) replica.step(mine);
  EXPECT_EQ(allocations_so_far() - before, 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, Reducer,
                         testing::Values(Case{comm::Engine::Drive::polled, true, 1}, Case{comm::Engine::Drive::polled, true, 2},
                                         Case{comm::Engine::Drive::polled, true, 7}, Case{comm::Engine::Drive::thread, true, 6},
                                         Case{comm::Engine::Drive::polled, false, 1}, Case{comm::Engine::Drive::polled, false, 5},
                                         Case{comm::Engine::Drive::thread, false, 3}),
                         [](const auto& info) {
                           return std::string(info.param.drive == comm::Engine::Drive::thread ? "thread" : "polled") + (info.param.deterministic ? "_tree_" : "_plain_") +
                                  std::to_string(info.param.per_rank);
                         });

/// The promise itself: one number of micro-batches a step, the same bits whoever holds them.
TEST(ReducerAcrossLayouts, OneRankAndAllRanksGiveTheSameBits) {
  if ((world().size() & (world().size() - 1)) != 0) return;
  const std::int64_t micro_batches = 12;
  comm::Engine engine(comm::Engine::Drive::polled);
  Replica alone(cpu, comm::Communicator(), engine, {micro_batches, true});
  Replica shared(cpu, world(), engine, {micro_batches / world().size(), true});
  std::vector<std::vector<float>> all;
  for (std::int64_t i = 0; i < micro_batches; ++i) all.push_back(gradient_of(alone.list, alone.layout, i));
  const std::int64_t per_rank = micro_batches / world().size();
  alone.step(all);
  shared.step({all.begin() + world().rank() * per_rank, all.begin() + (world().rank() + 1) * per_rank});
  const Tensor &a = alone.store.flat_gradient(), &b = shared.store.flat_gradient();
  EXPECT_EQ(std::memcmp(a.data, b.data, static_cast<std::size_t>(a.bytes())), 0);
}

}  // namespace
}  // namespace trireme::parallel
