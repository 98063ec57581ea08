// SPDX-License-Identifier: Apache-2.0
//
// Norms over a model that 1 to 4 ranks hold together. The stages of a pipeline have the bits of one
// rank. In a tensor group, split tensors count by their parts on every rank, and replicated ones
// count once.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "toy_fixture.hpp"

namespace trireme::optim {
namespace {

/// The ranks are stages of a pipeline: each holds some tensors of a model.
TEST(NormsOverTheModel, StagesTogetherGiveTheBitsOfOneRank) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const UpdateRule* used : rules()) {
    const Setting setting{ShardKind::none, true, 1, DType::float32, used};
    ToyFixture whole(cpu, comm::Communicator(), engine, setting);

    parallel::ParameterList list;  // every world.size()-th block
    NormScope groups{.model = world(),
                     .global_index = {},
                     .tensor_count = static_cast<int>(whole.list.entries().size()),
                     .counted = {},
                     .engine = &engine};
    for (std::size_t index = 0; index < whole.list.entries().size(); ++index) {
      const parallel::ParameterList::Entry& entry = whole.list.entries()[index];
      // The first and the last stage hold the tied tensor; the first owns it.
      const bool owner = entry.block % world().size() == world().rank(),
                 copy = entry.spec.tied && world().rank() + 1 == world().size();
      if (!owner && !copy) continue;
      list.begin_block(entry.block);
      parallel::ParameterSpec spec = entry.spec;
      spec.joined = false;
      list.declare(spec);
      groups.global_index.push_back(static_cast<std::int32_t>(index));
      groups.counted.push_back(owner ? 1 : 0);
    }
    const parallel::FlatLayout layout(list, 1, DType::float32);
    Arena memory(cpu, "memory", 1 << 20), slots(cpu, "slots", 1 << 20);
    parallel::ParameterStore store(list, layout, {}, memory, memory);
    store.initialize(whole.context, 5);
    Optimizer optimizer(options_of(*used), store, groups, slots);

    for (int step = 1; step <= 2; ++step) {
      const auto fill = [&](const Tensor& gradient, const std::string& name) {
        const std::uint64_t key = random_key(static_cast<std::uint64_t>(step), name);
        for (std::int64_t i = 0; i < gradient.elements(); ++i)
          gradient.as<float>()[i] =
              static_cast<float>(normal_at(key, static_cast<std::uint64_t>(i)));
      };
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(whole.list.entries().size()); ++i)
        fill(whole.store.gradient({i}), whole.list[{i}].name);
      for (std::int32_t i = 0; i < static_cast<std::int32_t>(list.entries().size()); ++i)
        fill(store.gradient({i}), list[{i}].name);
      EXPECT_EQ(optimizer.step(whole.context, 0.05, true).grad_norm,
                whole.optimizer.step(whole.context, 0.05, true).grad_norm);
    }
    for (std::size_t i = 0; i < list.entries().size(); ++i) {
      const Tensor mine = store.master({static_cast<std::int32_t>(i)}),
                   other = whole.store.master({groups.global_index[i]});
      EXPECT_EQ(std::memcmp(mine.data, other.data, static_cast<std::size_t>(mine.bytes())), 0)
          << list.entries()[i].spec.name;
    }
  }
}

/// The ranks are a tensor group: split tensors in parts, norms on every rank.
TEST(NormsOverTheModel, SplitTensorsCountByTheirPartsAndReplicatedOnesOnce) {
  const auto declare = [](parallel::ParameterList list) {
    const parallel::Initializer normal{parallel::Initializer::Kind::normal, 0.5};
    list.begin_block(0);
    list.declare({.name = "up",
                  .shape = {13, 6},
                  .initializer = normal,
                  .split = {parallel::Split::Along::rows}});
    list.declare(
        {.name = "norm", .shape = {6}, .initializer = normal, .decay = false, .trust = false});
    return list;
  };
  const parallel::ParameterList list = declare(
                                    parallel::ParameterList(world().rank(), world().size())),
                                whole_list = declare({});
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const NormScope groups{.model = world(),
                         .global_index = {0, 1},
                         .tensor_count = 2,
                         .counted = {1, static_cast<char>(world().rank() == 0)},
                         .engine = &engine};
  Arena memory(cpu, "memory", 1 << 20), workspace(cpu, "workspace", 1 << 16),
      library(cpu, "library", 1 << 16);
  ops::Context context(Stream{cpu}, workspace, library);
  const parallel::FlatLayout layout(list, 1, DType::float32),
      whole_layout(whole_list, 1, DType::float32);
  parallel::ParameterStore store(list, layout, {}, memory, memory),
      whole(whole_list, whole_layout, {}, memory, memory);
  store.initialize(context, 3);
  whole.initialize(context, 3);
  SquareSums parts(store, groups, memory), all(whole, {}, memory);
  parts.measure(context, store.flat_master());
  all.measure(context, whole.flat_master());
  const auto squares_of = [&](SquareSums& squares, std::size_t tensor) {
    const ops::PartialSquareSums parts = squares.parts(context.stream());
    double sum = 0;
    for (std::int64_t part = 0; part < parts.parts; ++part)
      sum += parts.sums[part * (parts.tensors + 1) +
                        static_cast<std::int64_t>(squares.index_of(tensor))];
    return sum;
  };
  const double up = squares_of(all, 0), norm = squares_of(all, 1);
  EXPECT_GT(norm, 0);
  EXPECT_NEAR(squares_of(parts, 0), up, 1e-13 * up)
      << "sums in double of the same squares, in another order";
  EXPECT_EQ(squares_of(parts, 1), norm);
}

}  // namespace
}  // namespace trireme::optim
