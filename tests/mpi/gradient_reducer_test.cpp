// SPDX-License-Identifier: Apache-2.0
//
// GradientReducer at 1 to 4 ranks, with every kind of sharding, in plain and tree order:
// - sums over micro-batches, ranks, tensor groups and tied stages are correct; tree order has the
//   same bits everywhere;
// - planned memory equals allocated memory, and steps allocate nothing;
// - bfloat16 transfers, and delayed sums;
// - gradients that are written in 16 bits and converted when their bucket is complete.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/tree.hpp"
#include "trireme/parallel/gradient_reducer.hpp"

namespace trireme::parallel {
namespace {

constexpr Device cpu{DeviceKind::cpu, 0};
constexpr int blocks = 5;

const comm::Communicator& world() { return test_environment().world(); }

/// Odd shapes, a block without parameters (3), several blocks in one bucket, one large block,
/// running statistics between weights, and a tensor that two blocks use.
ParameterList make_list() {
  ParameterList list;
  list.begin_block(0);
  list.declare({.name = "embedding", .shape = {19, 5}, .tied = true});
  list.declare({.name = "a.weight", .shape = {7, 3, 3, 3}});
  list.declare({.name = "a.mean", .shape = {23}, .role = Role::statistic});
  list.declare({.name = "a.bias", .shape = {7}});
  list.begin_block(1);
  list.declare({.name = "b.weight", .shape = {101, 97}});
  list.begin_block(2);
  list.declare({.name = "c.mean", .shape = {7}, .role = Role::statistic});
  list.declare({.name = "c.weight", .shape = {13, 17}});
  list.declare({.name = "c.variance", .shape = {7}, .role = Role::statistic});
  list.begin_block(4);
  list.declare({.name = "e.weight", .shape = {5, 11}});
  list.declare({.name = "e.bias", .shape = {1}});
  list.declare({.name = "embedding", .shape = {19, 5}, .tied = true});
  return list;
}

/// Returns the flat gradient of the micro-batch with this global index.
std::vector<float> gradient_of(const ParameterList& list, const FlatLayout& layout,
                               std::int64_t micro_batch) {
  std::vector<float> flat(static_cast<std::size_t>(layout.elements()));
  for (std::size_t index = 0; index < list.entries().size(); ++index) {
    const std::uint64_t key =
        random_key(static_cast<std::uint64_t>(micro_batch), list.entries()[index].spec.name);
    const FlatLayout::FlatTensor& slot = layout.tensors()[index];
    for (std::int64_t i = 0; i < slot.elements; ++i)
      flat[static_cast<std::size_t>(slot.offset + i)] =
          static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i)));
  }
  return flat;
}

struct Setting {
  ShardKind kind = ShardKind::none;
  bool deterministic = false;
  std::int64_t per_rank = 1;  ///< micro-batches of a rank in a step
  comm::TransferType wire = comm::TransferType::float32;
  bool delayed = false;
  /// Backward leaves the gradients of matrices in bfloat16, as a library does.
  bool narrow = false;
};

/// Backward of one micro-batch of the rank through one chunk of blocks.
struct Backward {
  int first = 0, end = blocks;
  std::int64_t micro_batch = 0;
};

/// A rank with all objects that a step needs.
struct ReducerFixture {
  ReducerFixture(Device device, const comm::Communicator& group, comm::Engine& engine,
                 const Setting& setting, std::span<const int> chunk_begins = {})
      : ReducerFixture(device, {group, {}, nullptr}, engine, setting, make_list(), chunk_begins) {}
  ReducerFixture(Device device, const GradientReducer::Groups& groups, comm::Engine& engine,
                 const Setting& setting, ParameterList list_in,
                 std::span<const int> chunk_begins = {})
      : list(std::move(list_in)),
        layout(list, 1024, DType::float32, chunk_begins),
        parameters(device, "parameters", 1 << 20),
        gradients(device, "gradients", 4 << 20),
        workspace(device, "workspace", 1 << 20),
        library(device, "library", 1 << 16),
        context(Stream{device}, workspace, library),
        store(list, layout, {setting.kind, groups.data, &engine}, parameters, gradients),
        reducer(store, groups, engine,
                {setting.per_rank, setting.deterministic, setting.delayed, setting.wire},
                gradients),
        narrow(setting.narrow) {
    for (std::int64_t index = 0; index < setting.per_rank; ++index)
      one_after_the_other.push_back({0, blocks, index});
  }

  /// Runs a step with the gradients of this rank's micro-batches, one after the other through all
  /// blocks.
  void step(const std::vector<std::vector<float>>& micro_batches) {
    step(micro_batches, one_after_the_other);
  }
  void step(const std::vector<std::vector<float>>& micro_batches,
            const std::vector<Backward>& order) {
    reducer.begin_step();
    for (const Backward& now : order) {
      const ops::Write write = reducer.begin_backward(context, now.first, now.end);
      for (int block = now.end - 1; block >= now.first; --block) {
        reducer.block_begins(context, block);
        backward(block, write, micro_batches[static_cast<std::size_t>(now.micro_batch)]);
        reducer.block_done(context, block);
      }
    }
    reducer.finish(context);
  }

  void backward(int block, ops::Write write, const std::vector<float>& flat) {
    for (std::size_t index = 0; index < list.entries().size(); ++index) {
      const ParameterList::Entry& entry = list.entries()[index];
      // On one rank the head (last block) writes its half of a tied gradient first; the embedding
      // (block 0) adds its own.
      const bool shared = entry.spec.tied && entry.block == 0, head = shared && block == blocks - 1,
                 embedding = shared && !head;
      if (entry.block != block && !head) continue;
      const float share = head || embedding ? 0.5f : 1.0f;
      const FlatLayout::FlatTensor& slot = layout.tensors()[index];
      float* to = store.gradient({static_cast<std::int32_t>(index)}).as<float>();
      const float* from = flat.data() + slot.offset;
      if (is_narrow(entry)) {
        const Tensor gradient = store.gradient({static_cast<std::int32_t>(index)}),
                     made = context.narrow_gradients()->allocate(DType::bfloat16, gradient.shape);
        for (std::int64_t i = 0; !context.meta() && i < slot.elements; ++i)
          made.as<BFloat16>()[i] = to_bfloat16(from[i]);
        context.narrow_gradients()->cast_later({.x = made, .y = gradient, .write = write});
        continue;
      }
      if (context.meta()) continue;
      const bool assigns = write == ops::Write::assign && !embedding;
      for (std::int64_t i = 0; i < slot.elements; ++i)
        to[i] = assigns ? share * from[i] : to[i] + share * from[i];
    }
  }

  /// Returns whether backward leaves the gradient in bfloat16.
  bool is_narrow(const ParameterList::Entry& entry) const {
    return narrow && !entry.spec.tied && entry.spec.shape.rank() > 1;
  }

  /// Calls each(value, flat offset) for the elements of the reduced gradient that this rank owns.
  template <class Each>
  void owned_gradient(Each&& each) const {
    for (std::size_t index = 0; index < list.entries().size(); ++index) {
      const ParameterShard::OwnedRows& part =
          store.owned().owned_rows({static_cast<std::int32_t>(index)});
      const std::int64_t row = list.entries()[index].partition.row_elements();
      const float* values = store.flat_gradient().as<float>() + part.offset;
      for (std::int64_t i = 0; i < (part.row_end - part.row_begin) * row; ++i) {
        each(values[i],
             static_cast<std::size_t>(layout.tensors()[index].offset + part.row_begin * row + i));
      }
    }
  }

  ParameterList list;
  FlatLayout layout;
  Arena parameters, gradients, workspace, library;
  ops::Context context;
  ParameterStore store;
  GradientReducer reducer;
  bool narrow;
  std::vector<Backward> one_after_the_other;
};

bool power_of_two(int ranks) { return (ranks & (ranks - 1)) == 0; }

/// The gradients of all micro-batches of a step, and those of this rank.
struct Gradients {
  Gradients(const ReducerFixture& replica, const comm::Communicator& group, std::int64_t per_rank) {
    for (std::int64_t i = 0; i < per_rank * group.size(); ++i)
      all.push_back(gradient_of(replica.list, replica.layout, i));
    // Numbers that bfloat16 holds have one sum, in whichever type backward leaves them.
    for (std::vector<float>& gradient : all) {
      for (std::size_t i = 0; replica.narrow && i < gradient.size(); ++i)
        gradient[i] = to_float(to_bfloat16(gradient[i]));
    }
    const auto first = all.begin() + group.rank() * per_rank;
    mine.assign(first, first + per_rank);
  }
  std::vector<std::vector<float>> all, mine;
};

struct Case {
  comm::Engine::ProgressMode drive;
  Setting setting;
};

class Reducer : public testing::TestWithParam<Case> {
 protected:
  Reducer()
      : setting(GetParam().setting),
        engine(GetParam().drive),
        replica(cpu, world(), engine, setting),
        gradients(replica, world(), setting.per_rank) {}

  /// Computes element i of the step's gradient on this rank alone. For a power-of-two number of
  /// ranks: the tree over all micro-batches, which does not depend on ranks. Otherwise: the trees
  /// of the ranks in rank order.
  float expected(std::size_t i) const {
    std::vector<float> leaves;
    for (const std::vector<float>& gradient : gradients.all) leaves.push_back(gradient[i]);
    if (power_of_two(world().size())) return tree_sum(std::span<const float>(leaves));
    float sum = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      const auto per_rank = static_cast<std::size_t>(setting.per_rank);
      sum += tree_sum(std::span<const float>(leaves).subspan(
          static_cast<std::size_t>(rank) * per_rank, per_rank));
    }
    return sum;
  }

  /// Returns for each element of the flat buffer whether it is a statistic.
  static std::vector<char> statistics(const ReducerFixture& of) {
    std::vector<char> found(static_cast<std::size_t>(of.layout.elements()));
    for (std::size_t index = 0; index < of.list.entries().size(); ++index) {
      const FlatLayout::FlatTensor& slot = of.layout.tensors()[index];
      if (of.list.entries()[index].spec.role == Role::statistic)
        std::fill_n(found.begin() + slot.offset, slot.elements, char{1});
    }
    return found;
  }

  void expect_sums(const ReducerFixture& of) const {
    const float n = static_cast<float>(gradients.all.size());
    const std::vector<char> exact = statistics(of);
    const bool narrow = setting.wire == comm::TransferType::bfloat16 && world().size() > 1;
    std::int64_t wrong = 0;
    of.owned_gradient([&](float value, std::size_t i) {
      const float want = expected(i);
      // Plain order: 2 n additions of partial sums below 6 n, in two orders.
      float bound = 2 * n * n * 6 * 0x1p-23f;
      // Values sent are rounded to 8 bits; without sharding the sum is rounded once more.
      if (narrow && exact[i] == 0) {
        float magnitude = 0;
        for (const std::vector<float>& gradient : gradients.all) magnitude += std::abs(gradient[i]);
        bound += 0x1p-8f * magnitude + 0x1p-8f * (std::abs(want) + 0x1p-8f * magnitude + bound);
        wrong += !(std::abs(value - want) <= bound);
      } else {
        wrong += setting.deterministic ? std::memcmp(&value, &want, sizeof want) != 0
                                       : !(std::abs(value - want) <= bound);
      }
    });
    EXPECT_EQ(wrong, 0) << "elements of the sum";
  }

  Setting setting;
  comm::Engine engine;
  ReducerFixture replica;
  Gradients gradients;
};

TEST_P(Reducer, GivesTheSumOfAllMicroBatches) {
  ASSERT_GE(replica.layout.buckets().size(), 4u);
  // The second step starts with the memory that the first one has left.
  for (int repeat = 0; repeat < 2; ++repeat) {
    replica.step(gradients.mine);
    expect_sums(replica);
  }
  if (replica.store.sharding().kind != ShardKind::none) return;
  EXPECT_EQ(replica.store.gradient({0}).as<float>(),
            replica.store.flat_gradient().as<float>() + replica.layout.tensors()[0].offset);
}

/// Like an interleaved pipeline, where chunks run backward at different times. Without the tied
/// tensor, whose two blocks would be in two chunks.
TEST_P(Reducer, ChunksMayTakeTheirMicroBatchesAtDifferentTimes) {
  const std::vector<int> begins{0, 2};
  const ParameterList all = make_list();
  ParameterList list;
  for (const ParameterList::Entry& entry : all.entries()) {
    if (entry.spec.tied) continue;
    list.begin_block(entry.block);
    list.declare(entry.spec);
  }
  ReducerFixture chunked(cpu, {world(), {}, nullptr}, engine, setting, std::move(list), begins);
  gradients = Gradients(chunked, world(), setting.per_rank);
  // Two micro-batches through the upper chunk, then two through the lower one.
  std::vector<Backward> order;
  for (std::int64_t begin = 0; begin < setting.per_rank; begin += 2) {
    const std::int64_t end = std::min(begin + 2, setting.per_rank);
    for (std::int64_t index = begin; index < end; ++index) order.push_back({2, blocks, index});
    for (std::int64_t index = begin; index < end; ++index) order.push_back({0, 2, index});
  }
  for (int repeat = 0; repeat < 2; ++repeat) {
    chunked.step(gradients.mine, order);
    expect_sums(chunked);
  }
}

TEST_P(Reducer, TakesAsManyBytesAsItsMetaTwin) {
  const comm::Communicator absent = world().size() == 1
                                        ? comm::Communicator()
                                        : comm::Communicator::meta(world().rank(), world().size());
  ReducerFixture planned({DeviceKind::meta, 0}, absent, engine, setting);
  EXPECT_EQ(planned.gradients.used_bytes(), replica.gradients.used_bytes());
  EXPECT_EQ(planned.parameters.used_bytes(), replica.parameters.used_bytes());
  planned.step(gradients.mine);
  replica.step(gradients.mine);
  EXPECT_EQ(planned.gradients.peak_bytes(), replica.gradients.peak_bytes());
  EXPECT_EQ(planned.gradients.used_bytes(), replica.gradients.used_bytes());
  EXPECT_EQ(replica.gradients.peak_bytes() > replica.gradients.used_bytes(), setting.narrow);
  double bytes = 4.0 * static_cast<double>(planned.layout.elements());
  const double ranks = world().size();
  for (const FlatLayout::Bucket& bucket : planned.layout.buckets())
    bytes -= setting.wire == comm::TransferType::bfloat16
                 ? 2.0 * static_cast<double>(bucket.statistics_begin - bucket.begin)
                 : 0;
  const bool every_time =
      setting.kind == ShardKind::gradients && !(setting.deterministic && setting.per_rank > 1);
  // meta_bytes() counts the contribution of a rank to all_reduce, and the bytes it sends in
  // reduce_scatter.
  const double expected =
      setting.kind == ShardKind::none
          ? bytes
          : bytes * (ranks - 1) / ranks * (every_time ? static_cast<double>(setting.per_rank) : 1);
  EXPECT_NEAR(absent.meta_bytes(), world().size() == 1 ? 0 : expected, 1e-9 * expected);
}

TEST_P(Reducer, StepsAllocateNothing) {
  const bool adds =
      setting.per_rank > 1 && (setting.deterministic || setting.kind == ShardKind::gradients);
  if (adds || setting.narrow) GTEST_SKIP() << "Kokkos makes a string of each kernel's label";
  for (int i = 0; i < 2; ++i) replica.step(gradients.mine);
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < 10; ++i) replica.step(gradients.mine);
  EXPECT_EQ(allocations_so_far() - before, 0);
}

std::vector<Case> all_cases() {
  using Drive = comm::Engine::ProgressMode;
  std::vector<Case> cases;
  for (const ShardKind kind : {ShardKind::none, ShardKind::optimizer, ShardKind::gradients}) {
    for (const std::int64_t per_rank : {1, 2, 7})
      cases.push_back({Drive::polled, {kind, true, per_rank}});
    for (const std::int64_t per_rank : {1, 5})
      cases.push_back({Drive::polled, {kind, false, per_rank}});
    cases.push_back({Drive::thread, {kind, true, 6}});
    cases.push_back({Drive::thread, {kind, false, 3}});
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t per_rank : {1, 3})
        cases.push_back(
            {Drive::polled, {kind, deterministic, per_rank, comm::TransferType::bfloat16}});
    }
    cases.push_back({Drive::thread, {kind, false, 5, comm::TransferType::bfloat16}});
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t per_rank : {1, 3})
        cases.push_back(
            {Drive::polled,
             {.kind = kind, .deterministic = deterministic, .per_rank = per_rank, .narrow = true}});
    }
  }
  return cases;
}

std::string name_of(const Case& of) {
  const char* const kinds[] = {"whole", "optimizer", "gradients", "parameters"};
  return std::string(of.drive == comm::Engine::ProgressMode::thread ? "thread" : "polled") +
         (of.setting.deterministic ? "_tree_" : "_plain_") +
         kinds[static_cast<int>(of.setting.kind)] + "_" + std::to_string(of.setting.per_rank) +
         (of.setting.wire == comm::TransferType::bfloat16 ? "_narrow" : "") +
         (of.setting.narrow ? "_left_in_16_bits" : "");
}

INSTANTIATE_TEST_SUITE_P(Cases, Reducer, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return name_of(info.param); });

/// For a fixed number of micro-batches in a step, the bits do not depend on the ranks that hold
/// them.
TEST(ReducerAcrossLayouts, OneRankAndAllRanksGiveTheSameBitsAtEveryKindOfSharding) {
  if (!power_of_two(world().size())) return;
  const std::int64_t micro_batches = 12, per_rank = micro_batches / world().size();
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  ReducerFixture alone(cpu, comm::Communicator(), engine, {ShardKind::none, true, micro_batches});
  const Gradients gradients(alone, world(), per_rank);
  alone.step(gradients.all);
  const float* whole = alone.store.flat_gradient().as<float>();
  for (const ShardKind kind :
       {ShardKind::none, ShardKind::optimizer, ShardKind::gradients, ShardKind::parameters}) {
    ReducerFixture shared(cpu, world(), engine, {kind, true, per_rank});
    shared.step(gradients.mine);
    std::int64_t wrong = 0;
    shared.owned_gradient([&](float value, std::size_t i) {
      wrong += std::memcmp(&value, &whole[i], sizeof value) != 0;
    });
    EXPECT_EQ(wrong, 0) << "elements at kind " << static_cast<int>(kind);
  }
}

constexpr ShardKind all_kinds[] = {ShardKind::none, ShardKind::optimizer, ShardKind::gradients,
                                   ShardKind::parameters};

/// Restarts need reproducible bits, and replicas need equal weights.
TEST(ReducerInBfloat16, GivesTheSameBitsAgainAndOnAllRanks) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : all_kinds) {
    for (const bool deterministic : {false, true}) {
      std::vector<float> sums[2];
      for (std::vector<float>& sum : sums) {
        ReducerFixture replica(cpu, world(), engine,
                               {kind, deterministic, 3, comm::TransferType::bfloat16});
        const Gradients gradients(replica, world(), 3);
        replica.step(gradients.mine);
        replica.owned_gradient([&](float value, std::size_t) { sum.push_back(value); });
      }
      EXPECT_EQ(sums[0], sums[1]);
      if (kind != ShardKind::none) continue;
      std::vector<float> of_rank_0 = sums[0];
      world().broadcast(std::as_writable_bytes(std::span(of_rank_0)), 0);
      EXPECT_EQ(of_rank_0, sums[0]);
    }
  }
}

TEST(ReducerInBfloat16, SendsHalfTheBytesOfWeightsAndAllOfStatistics) {
  for (const ShardKind kind : all_kinds) {
    double bytes[2], statistics = 0, elements = 0;
    for (const comm::TransferType wire :
         {comm::TransferType::float32, comm::TransferType::bfloat16}) {
      comm::Engine engine(comm::Engine::ProgressMode::polled);
      ReducerFixture replica(cpu, world(), engine, {kind, false, 1, wire});
      replica.step(Gradients(replica, world(), 1).mine);
      engine.quiesce();
      double& sent = bytes[wire == comm::TransferType::bfloat16];
      sent = engine.bytes_sent();
      world().all_reduce(std::span(&sent, 1), comm::Reduction::sum);
      if (wire == comm::TransferType::float32) continue;
      for (const FlatLayout::Bucket& bucket : replica.layout.buckets())
        statistics += static_cast<double>(bucket.end - bucket.statistics_begin);
      elements = static_cast<double>(replica.layout.elements());
    }
    ASSERT_GT(statistics, 0);
    EXPECT_NEAR(bytes[1], bytes[0] * (elements + statistics) / (2 * elements), 1e-9 * bytes[0])
        << "kind " << static_cast<int>(kind);
  }
}

/// A value of one rank, in a weight or a statistic; delayed sums return it one step later.
TEST(ReducerInBfloat16, NonFiniteValuesReachTheirOwner) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : all_kinds) {
    for (const bool delayed : {false, true}) {
      ReducerFixture replica(cpu, world(), engine,
                             {kind, false, 1, comm::TransferType::bfloat16, delayed});
      Gradients gradients(replica, world(), 1);
      const std::size_t places[] = {
          static_cast<std::size_t>(replica.layout.tensors()[1].offset) + 5,
          static_cast<std::size_t>(replica.layout.tensors()[2].offset) + 5};
      if (world().rank() == world().size() - 1) {
        for (const std::size_t place : places)
          gradients.mine[0][place] = std::numeric_limits<float>::infinity();
      }
      for (int step = 0; step < (delayed ? 2 : 1); ++step) replica.step(gradients.mine);
      std::int64_t found = 0;
      replica.owned_gradient([&](float value, std::size_t i) {
        const bool here = i == places[0] || i == places[1];
        EXPECT_EQ(std::isfinite(value), !here) << i;
        found += here;
      });
      EXPECT_TRUE(kind != ShardKind::none || found == 2);
      replica.reducer.complete_pending(replica.context);
    }
  }
}

/// Two stages: the first holds the embedding, the last a head that is tied to it. The other ranks
/// are replicas.
TEST(ReducerOfTwoStages, TiedGradientsAreTheSumOfBothStages) {
  if (world().size() % 2 != 0) return;
  const int replicas = world().size() / 2, stage = world().rank() / replicas;
  const comm::Communicator data = world().split(stage, world().rank()),
                           ends = world().split(world().rank() % replicas, stage);
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : {ShardKind::none, ShardKind::optimizer, ShardKind::gradients}) {
    for (const bool deterministic : {false, true}) {
      ParameterList list;
      list.begin_block(stage == 0 ? 1 : 2);
      list.declare({.name = stage == 0 ? "first" : "last", .shape = {9, 7}});
      list.begin_block(stage == 0 ? 1 : 3);
      list.declare({.name = "embedding", .shape = {19, 5}, .tied = true});
      ReducerFixture replica(cpu, {data, ends, nullptr}, engine, {kind, deterministic, 3},
                             std::move(list));
      std::vector<std::vector<float>> mine;
      for (int i = 0; i < 3; ++i)
        mine.push_back(gradient_of(replica.list, replica.layout, 3 * world().rank() + i));
      replica.step(mine);
      // The stages have micro-batches with different indices, so their gradients differ. Only the
      // tied tensor sums both.
      std::vector<float> sum(static_cast<std::size_t>(replica.layout.elements()));
      const auto tied_begin = static_cast<std::size_t>(replica.layout.tensor({1}).offset);
      for (int i = 0; i < 3 * world().size(); ++i) {
        const bool same_stage = i / 3 / replicas == stage;
        const std::vector<float> gradient = gradient_of(replica.list, replica.layout, i);
        for (std::size_t k = same_stage ? 0 : tied_begin; k < sum.size(); ++k)
          sum[k] += gradient[k];
      }
      const float n = 3.0f * static_cast<float>(world().size());
      // The same bound as above.
      replica.owned_gradient([&](float value, std::size_t i) {
        ASSERT_NEAR(value, sum[i], n * n * 6 * 0x1p-23f) << i;
      });
    }
  }
}

/// Norms are replicated over the tensor group; under sequence parallelism the gradient of each rank
/// covers only its part of the rows. That of the bias here is a part in any group.
TEST(ReducerOfATensorGroup, PartialGradientsAreSummedOverTheGroup) {
  const int split = world().size() % 2 == 0 ? 2 : 1;
  const comm::Communicator group =
      split == 1 ? comm::Communicator() : world().split(world().rank() / split, world().rank());
  const comm::Communicator data = world().split(world().rank() % split, world().rank());
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const TensorGroup whole_rows(group, engine, comm::SumOrder::tree, false),
      split_rows(group, engine, comm::SumOrder::tree, true);
  for (const ShardKind kind : {ShardKind::none, ShardKind::optimizer, ShardKind::gradients}) {
    for (const auto& [deterministic, sequence] :
         {std::pair{false, true}, {true, true}, {false, false}, {true, false}}) {
      const TensorGroup& tensor = sequence ? split_rows : whole_rows;
      constexpr PartialGradient held = PartialGradient::of_held_rows;
      ParameterList list;
      list.begin_block(1);
      list.declare({.name = "norm.weight", .shape = {11}, .partial_gradient = held});
      list.declare({.name = "norm.bias", .shape = {11}, .partial_gradient = held});
      list.declare({.name = "linear", .shape = {9, 7}});
      list.declare(
          {.name = "out.bias", .shape = {5}, .partial_gradient = PartialGradient::in_any_group});
      ReducerFixture replica(cpu, {data, {}, &tensor}, engine, {kind, deterministic, 2},
                             std::move(list));
      std::vector<std::vector<float>> mine;
      for (int i = 0; i < 2; ++i)
        mine.push_back(gradient_of(replica.list, replica.layout, 2 * world().rank() + i));
      replica.step(mine);
      std::vector<float> all(static_cast<std::size_t>(replica.layout.elements())), of_data = all;
      for (int i = 0; i < 2 * world().size(); ++i) {
        const std::vector<float> gradient = gradient_of(replica.list, replica.layout, i);
        const bool same_part = i / 2 % split == world().rank() % split;
        for (std::size_t k = 0; k < all.size(); ++k) {
          all[k] += gradient[k];
          if (same_part) of_data[k] += gradient[k];
        }
      }
      // Tensors whose gradient is summed over the data group alone.
      std::vector<char> alone(all.size());
      for (const std::int32_t index : sequence ? std::vector{2} : std::vector{0, 1, 2}) {
        const FlatLayout::FlatTensor& place = replica.layout.tensor({index});
        std::fill_n(alone.begin() + place.offset, place.elements, 1);
      }
      const float n = 2.0f * static_cast<float>(world().size());
      replica.owned_gradient([&](float value, std::size_t i) {
        ASSERT_NEAR(value, alone[i] != 0 ? of_data[i] : all[i], n * n * 6 * 0x1p-23f)
            << i << (sequence ? " rows are split" : "");
      });
    }
  }
}

}  // namespace
}  // namespace trireme::parallel
