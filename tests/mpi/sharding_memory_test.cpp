// SPDX-License-Identifier: Apache-2.0
//
// Memory of a sharded and offloaded step at 1 to 4 ranks: each arena holds the documented amount,
// the device holds only staging for offloaded state, and the plan on meta is the same. Steps
// allocate nothing.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "toy_fixture.hpp"

namespace trireme::optim {
namespace {

std::int64_t in_arena(std::int64_t bytes) {
  return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
}

TEST(ShardedMemory, IsTheOwnShardsAndTheBucketsInUse) {
  if (world().size() == 1) return;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t per_rank : {1, 3}) {
        ToyFixture toy(cpu, world(), engine,
                       {ShardKind::parameters, deterministic, per_rank, compute, &rule("adamw")});
        for (int step = 1; step <= 2; ++step) toy.step(step);
        const std::int64_t own = in_arena(4 * toy.store.owned().elements()),
                           whole = in_arena(4 * toy.layout.elements());
        std::int64_t weights = 0, elements = 0, own_elements = 0, tied_weights = 0,
                     tied_elements = 0, tied_own = 0;
        for (std::size_t index = 0; index < toy.layout.buckets().size(); ++index) {
          const parallel::FlatLayout::Bucket& bucket = toy.layout.buckets()[index];
          const std::int64_t owned = toy.store.owned().buckets()[index].elements();
          if (bucket.tied) {
            tied_weights = in_arena(bucket.working_bytes());
            tied_elements = in_arena(4 * bucket.elements());
            tied_own = in_arena(4 * owned);
          } else {
            weights = std::max(weights, in_arena(bucket.working_bytes()));
            elements = std::max(elements, in_arena(4 * bucket.elements()));
            own_elements = std::max(own_elements, in_arena(4 * owned));
          }
        }
        EXPECT_EQ(toy.slots.peak_bytes(), 2 * own);
        EXPECT_EQ(toy.parameters.peak_bytes(), own + 2 * weights + tied_weights);
        if (deterministic && per_rank > 1) {
          EXPECT_EQ(toy.gradients.peak_bytes(), own + (3 + 1) * whole)
              << "levels of the tree over 3, and the partner's part";
        } else {
          const std::int64_t bucket_buffers = 2 * elements + tied_elements,
                             results = 2 * own_elements + tied_own;
          EXPECT_EQ(toy.gradients.peak_bytes(),
                    own + (deterministic ? 2 : 1) * bucket_buffers + (per_rank > 1 ? results : 0));
        }
        EXPECT_EQ(world().all_reduce(toy.store.owned().elements(), comm::Reduction::sum),
                  toy.layout.elements())
            << "the shards together are the state once";
      }
    }
  }
}

TEST(ShardedMemory, DeviceHasOnlyStagingForOffloadedState) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : kinds) {
    for (const DType compute : {DType::float32, DType::bfloat16}) {
      const Setting setting{kind, true, 1, compute, &rule("adamw")};
      ToyFixture here(cpu, world(), engine, setting);
      std::int64_t weights = 0, tied_weights = 0;
      for (const parallel::FlatLayout::Bucket& bucket : here.layout.buckets()) {
        std::int64_t& bytes = bucket.tied ? tied_weights : weights;
        bytes = std::max(bytes, in_arena(bucket.working_bytes()));
      }
      for (const parallel::Offload& offload : {slots_on_host, masters_on_host, both_on_host}) {
        Setting offloaded_setting = setting;
        offloaded_setting.offload = offload;
        ToyFixture offloaded(cpu, world(), engine, offloaded_setting);
        for (int step = 1; step <= 2; ++step) {
          here.step(step);
          offloaded.step(step);
        }
        const std::int64_t own = in_arena(4 * offloaded.store.owned().elements()),
                           staging =
                               2 * in_arena(4 * offloaded.store.owned().largest_window_elements());
        EXPECT_LE(offloaded.store.owned().largest_window_elements(), 66)
            << "rows of at most 45 elements, and a gap of 15 behind the last";
        EXPECT_EQ(here.host_slots.peak_bytes() + here.host_parameters.peak_bytes(), 0);
        EXPECT_EQ(offloaded.gradients.peak_bytes(), here.gradients.peak_bytes());
        EXPECT_EQ(offloaded.host_slots.peak_bytes(), offload.optimizer ? 2 * own : 0);
        EXPECT_EQ(offloaded.slots.peak_bytes(), offload.optimizer ? 2 * staging : 2 * own);
        EXPECT_EQ(offloaded.host_parameters.peak_bytes(), offload.parameters ? own : 0);
        EXPECT_EQ(offloaded.parameters.peak_bytes(), offload.parameters
                                                         ? staging + 2 * weights + tied_weights
                                                         : here.parameters.peak_bytes());
      }
    }
  }
}

TEST(ShardedMemory, IsTheSameOnMeta) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  const comm::Communicator absent = world().size() == 1
                                        ? comm::Communicator()
                                        : comm::Communicator::meta(world().rank(), world().size());
  for (const ShardKind kind : kinds) {
    for (const bool deterministic : {false, true}) {
      for (const parallel::Offload& offload : {on_device, slots_on_host, both_on_host}) {
        const Setting setting{kind, deterministic, 3, DType::bfloat16, &rule("lamb"), offload};
        ToyFixture real(cpu, world(), engine, setting),
            planned({DeviceKind::meta, 0}, absent, engine, setting);
        real.step(1);
        EXPECT_TRUE(planned.step(1).applied);
        EXPECT_EQ(planned.parameters.peak_bytes(), real.parameters.peak_bytes());
        EXPECT_EQ(planned.gradients.peak_bytes(), real.gradients.peak_bytes());
        EXPECT_EQ(planned.slots.peak_bytes(), real.slots.peak_bytes());
        EXPECT_EQ(planned.host_parameters.peak_bytes(), real.host_parameters.peak_bytes());
        EXPECT_EQ(planned.host_slots.peak_bytes(), real.host_slots.peak_bytes());
        EXPECT_EQ(planned.workspace.peak_bytes(), real.workspace.peak_bytes());
        EXPECT_EQ(planned.context.counters().bytes, real.context.counters().bytes);
        EXPECT_EQ(planned.context.counters().calls, real.context.counters().calls);
        EXPECT_EQ(absent.meta_bytes() > 0, world().size() > 1);
      }
    }
  }
}

TEST(ShardedSteps, AllocateNothing) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : kinds) {
    for (const parallel::Offload& offload : {on_device, both_on_host}) {
      ToyFixture toy(cpu, world(), engine,
                     {kind, true, 3, DType::bfloat16, &rule("lamb"), offload});
      for (int step = 1; step <= 2; ++step) toy.step(step);
      const std::int64_t before = allocations_so_far();
      for (int step = 3; step <= 5; ++step) toy.step(step);
      EXPECT_EQ(allocations_so_far() - before, 0) << kind_names[static_cast<int>(kind)];
    }
  }
}

}  // namespace
}  // namespace trireme::optim
