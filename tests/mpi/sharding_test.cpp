// Sharding and offload of a whole step (store, reducer, optimizer) at 1 to 4 ranks, on a replica
// without layers:
// - weights and state equal those of a replica that shards nothing, bit by bit in tree order;
// - offloaded state and an emulated device have the same bits;
// - memory is the documented amount, also on meta, and steps allocate nothing.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "support/count_allocations.hpp"
#include "support/mpi.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"
#include "trireme/parallel/periodic_average.hpp"

namespace trireme::optim {
namespace {

using parallel::ParameterId;
using parallel::ShardKind;

constexpr Device cpu{DeviceKind::cpu, 0};
constexpr int blocks = 4;
constexpr parallel::Offload on_device{}, slots_on_host{.optimizer = true},
    masters_on_host{.parameters = true}, both_on_host{.optimizer = true, .parameters = true};
constexpr ShardKind kinds[] = {ShardKind::none, ShardKind::optimizer, ShardKind::gradients,
                               ShardKind::parameters};

const comm::Communicator& world() { return test_environment().world(); }

/// Odd shapes: a tied embedding with a prime number of rows, vectors that cannot be divided, joined
/// projections, running statistics, fewer rows than ranks, and a block without parameters (2).
parallel::ParameterList toy_list() {
  const parallel::Initializer normal{parallel::Initializer::Kind::normal, 0.5};
  parallel::ParameterList list;
  list.begin_block(0);
  list.declare({.name = "embedding", .shape = {37, 6}, .initializer = normal, .tied = true});
  list.declare({.name = "positions", .shape = {2, 6}, .initializer = normal});
  list.begin_block(1);
  list.declare({.name = "norm",
                .shape = {11},
                .initializer = {.value = 1},
                .decay = false,
                .trust = false,
                .compute_copy = false});
  list.declare({.name = "mean",
                .shape = {11},
                .initializer = {.value = 0.25},
                .role = parallel::Role::statistic,
                .decay = false,
                .trust = false,
                .compute_copy = false});
  list.declare({.name = "q", .shape = {7, 11}, .initializer = normal});
  list.declare({.name = "k", .shape = {3, 11}, .initializer = normal, .joined = true});
  list.declare({.name = "conv",
                .shape = {5, 3, 3, 3},
                .initializer = normal,
                .inner = parallel::InnerOrder::channels_last});
  list.begin_block(3);
  list.declare({.name = "head.norm",
                .shape = {6},
                .initializer = {.value = 1},
                .decay = false,
                .trust = false,
                .compute_copy = false});
  list.declare({.name = "head", .shape = {23, 6}, .initializer = normal});
  list.declare({.name = "embedding", .shape = {37, 6}, .initializer = normal, .tied = true});
  return list;
}

struct Setting {
  ShardKind kind = ShardKind::none;
  bool deterministic = true;
  std::int64_t per_rank = 1;  ///< micro-batches of a rank in a step
  DType compute = DType::float32;
  OptimizerKind optimizer = OptimizerKind::sgd;
  parallel::Offload offload = {};
  /// A part of the larger tensors, or several of the smaller ones.
  std::int64_t window_elements = 50;
};

OptimizerOptions options_of(OptimizerKind kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.weight_decay = 0.02;
  options.clip_norm = 5;  // gradients are larger, so the norm affects every weight
  if (kind == OptimizerKind::lars) options.trust_coefficient = 0.02;
  return options;
}

double to_double(const Tensor& tensor, std::int64_t i) {
  if (tensor.dtype == DType::float32) return tensor.as<float>()[i];
  return std::bit_cast<float>(static_cast<std::uint32_t>(tensor.as<std::uint16_t>()[i]) << 16);
}

/// A replica whose gradients are functions of the weights, the micro-batch and the element, so that
/// a stale weight changes the result.
struct ToyFixture {
  ToyFixture(Device device, const comm::Communicator& data, comm::Engine& engine_in,
             const Setting& setting_in)
      : engine(engine_in),
        setting(setting_in),
        stream(device),
        list(toy_list()),
        layout(list, 1, setting.compute),
        parameters(device, "parameters", 1 << 20),
        gradients(device, "gradients", 1 << 20),
        slots(device, "optimizer state", 1 << 20),
        workspace(device, "workspace", 1 << 16),
        library(device, "library", 1 << 16),
        host_parameters(host_of(device), "host parameters", 1 << 20, Pages::pinned),
        host_slots(host_of(device), "host optimizer state", 1 << 20, Pages::pinned),
        context(stream, workspace, library),
        store(list, layout,
              {setting.kind, data, &engine, setting.offload.any() ? setting.window_elements : 0},
              {parameters, setting.offload.parameters ? &host_parameters : nullptr,
               target_of(device)},
              gradients),
        reducer(store, {data, {}, nullptr}, engine, {setting.per_rank, setting.deterministic},
                gradients),
        optimizer(options_of(setting.optimizer), store, {},
                  {slots, setting.offload.optimizer ? &host_slots : nullptr, target_of(device)}),
        first_micro_batch(data.rank() * setting.per_rank) {
    if (device.kind == DeviceKind::emulated) {
      engine.quiesce();
      engine.attach_device(stream);
    }
    store.initialize(context, 5);
    for (const parallel::ParameterList::Entry& entry : list.entries())
      keys.push_back(random_key(1, entry.spec.name));
  }
  ~ToyFixture() { engine.quiesce(); }  // requests under way use this memory
  static Device host_of(Device device) { return device.kind == DeviceKind::meta ? device : cpu; }
  static DeviceKind target_of(Device device) {
    return device.kind == DeviceKind::meta ? DeviceKind::cpu : device.kind;
  }

  StepOutcome step(int number) {
    reducer.begin_step();
    for (std::int64_t micro_batch = 0; micro_batch < setting.per_rank; ++micro_batch) {
      for (int block = 0; block < blocks; ++block)
        store.acquire(context, block, block + 1 < blocks ? block + 1 : -1);  // forward
      const ops::Write write = reducer.begin_backward(context, 0, blocks);
      for (int block = blocks - 1; block >= 0; --block) {
        store.acquire(context, block, block - 1);
        reducer.block_begins(context, block);
        if (!context.meta()) backward(block, number, first_micro_batch + micro_batch, write);
        reducer.block_done(context, block);
      }
    }
    reducer.finish(context);
    const StepOutcome outcome = optimizer.step(context, 0.05, true);
    store.start_gather(context);
    return outcome;
  }

  void backward(int block, int step, std::int64_t micro_batch, ops::Write write) {
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size());
         ++index) {
      const parallel::ParameterList::Entry& entry = list.entries()[static_cast<std::size_t>(index)];
      const bool head = entry.spec.tied && block == blocks - 1;
      if (entry.block != block && !head) continue;
      const Tensor weight = on_host(store.weight({index}), weight_room),
                   gradient = store.gradient({index}), here = on_host(gradient, gradient_room);
      const std::uint64_t key =
          mix64(keys[static_cast<std::size_t>(index)] ^
                static_cast<std::uint64_t>(1000 * step + 2 * micro_batch + (head ? 1 : 0)));
      for (std::int64_t i = 0; i < gradient.elements(); ++i) {
        // Far from 0, so that the order of additions causes only rounding differences with adamw
        // and lamb too.
        const double value =
            (i % 2 == 0 ? 1 : -1) * (1 + 0.25 * uniform_at(key, static_cast<std::uint64_t>(i))) +
            0.1 * to_double(weight, i);
        // The head writes a tied tensor first.
        const bool assigns = write == ops::Write::assign && !(entry.spec.tied && !head);
        float& to = here.as<float>()[i];
        to = assigns ? static_cast<float>(value) : to + static_cast<float>(value);
      }
      if (here.data != gradient.data)
        copy_bytes(stream, gradient.data, here.data, static_cast<std::size_t>(here.bytes()));
    }
  }

  /// Returns the tensor itself if the host can access it, otherwise a copy in `room`.
  Tensor on_host(const Tensor& tensor, std::vector<std::byte>& room) const {
    if (in_host_memory(tensor.device)) return tensor;
    room.resize(static_cast<std::size_t>(tensor.bytes()));
    copy_bytes(stream, room.data(), tensor.data, room.size());
    return {room.data(), tensor.dtype, DeviceKind::cpu, tensor.shape};
  }
  void add_bytes(const Tensor& tensor, std::vector<std::byte>& bytes) const {
    std::vector<std::byte> room;
    const auto* begin = static_cast<const std::byte*>(on_host(tensor, room).data);
    bytes.insert(bytes.end(), begin, begin + tensor.bytes());
  }
  /// Returns masters and slots as bytes.
  std::vector<std::byte> state() const {
    synchronize(stream);  // for state in host memory
    std::vector<std::byte> bytes;
    add_bytes(store.flat_master(), bytes);
    for (const Optimizer::Slot& slot : optimizer.slots()) add_bytes(slot.flat, bytes);
    return bytes;
  }

  /// Returns every working weight as bytes, tensor by tensor in the order of blocks.
  std::vector<std::byte> working() {
    std::vector<std::byte> bytes;
    for (int block = 0; block < blocks; ++block) {
      store.acquire(context, block, block + 1 < blocks ? block + 1 : -1);
      for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size());
           ++index) {
        if (list.entries()[static_cast<std::size_t>(index)].block != block) continue;
        add_bytes(store.weight({index}), bytes);
      }
    }
    return bytes;
  }

  /// Calls each(this rank's element, the other's) for all owned elements of masters and slots.
  /// `whole` does not shard.
  template <class Each>
  void compare(const ToyFixture& whole, Each&& each) const {
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size());
         ++index) {
      const parallel::ParameterShard::OwnedRows& part = store.owned().owned_rows({index});
      const std::int64_t row = list.partition({index}).row_elements(),
                         begin = whole.layout.tensor({index}).offset + part.row_begin * row;
      for (std::int64_t i = 0; i < (part.row_end - part.row_begin) * row; ++i) {
        each(store.flat_master().as<float>()[part.offset + i],
             whole.store.flat_master().as<float>()[begin + i]);
        for (std::size_t slot = 0; slot < optimizer.slots().size(); ++slot) {
          each(optimizer.slots()[slot].flat.as<float>()[part.offset + i],
               whole.optimizer.slots()[slot].flat.as<float>()[begin + i]);
        }
      }
    }
  }

  comm::Engine& engine;
  Setting setting;
  OwnedStream stream;
  std::vector<std::byte> weight_room, gradient_room;
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  Arena parameters, gradients, slots, workspace, library, host_parameters, host_slots;
  ops::Context context;
  parallel::ParameterStore store;
  parallel::GradientReducer reducer;
  Optimizer optimizer;
  std::int64_t first_micro_batch;
  std::vector<std::uint64_t> keys;  ///< random keys of the gradients, by tensor
};

constexpr OptimizerKind optimizers[] = {OptimizerKind::sgd, OptimizerKind::adamw,
                                        OptimizerKind::lars, OptimizerKind::lamb};
const char* const kind_names[] = {"none", "optimizer", "gradients", "parameters"};

std::string name_of(const Setting& setting) {
  const char* const optimizer_names[] = {"sgd", "adamw", "lars", "lamb"};
  return std::string(kind_names[static_cast<int>(setting.kind)]) +
         (setting.deterministic ? "_tree_" : "_plain_") + std::to_string(setting.per_rank) + "_" +
         (setting.compute == DType::bfloat16 ? "bfloat16_" : "float32_") +
         optimizer_names[static_cast<int>(setting.optimizer)];
}

class Sharding : public testing::TestWithParam<Setting> {};

TEST_P(Sharding, GivesTheWeightsOfAWholeReplica) {
  const Setting setting = GetParam();
  Setting whole_setting = setting;
  whole_setting.kind = ShardKind::none;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  ToyFixture whole(cpu, world(), engine, whole_setting), sharded(cpu, world(), engine, setting);
  EXPECT_EQ(sharded.working(), whole.working()) << "the initial weights";
  for (int step = 1; step <= 3; ++step) {
    const StepOutcome a = whole.step(step), b = sharded.step(step);
    EXPECT_TRUE(a.applied && b.applied);
    if (setting.deterministic) {
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(sharded.working(), whole.working()) << "after step " << step;
    } else {
      // A dozen float32 additions of each element, 6e-8 each.
      EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-6 * a.grad_norm);
    }
  }
  std::int64_t wrong = 0;
  sharded.compare(whole, [&](float mine, float other) {
    // Plain sums of up to 12 float32 numbers in other orders, three steps: some 1e-6 of numbers
    // between 1 and 30.
    wrong += setting.deterministic
                 ? std::memcmp(&mine, &other, sizeof mine) != 0
                 : !(std::abs(mine - other) <= 1e-6f * std::max(1.0f, std::abs(other)));
  });
  EXPECT_EQ(wrong, 0) << "elements of masters and slots";
}

std::vector<Setting> all_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : {ShardKind::optimizer, ShardKind::gradients, ShardKind::parameters}) {
    for (const OptimizerKind optimizer : optimizers) {
      for (const bool deterministic : {true, false}) {
        for (const std::int64_t per_rank : {1, 3})
          settings.push_back({kind, deterministic, per_rank, DType::float32, optimizer});
      }
      settings.push_back({kind, true, 2, DType::bfloat16, optimizer});
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sharding, testing::ValuesIn(all_settings()),
                         [](const auto& info) { return name_of(info.param); });

class Offloading : public testing::TestWithParam<Setting> {};

TEST_P(Offloading, HasTheSameBitsForEveryStateLocation) {
  const Setting setting = GetParam();
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const parallel::Offload& offload : {slots_on_host, masters_on_host, both_on_host}) {
    // One row each, some rows, one bucket.
    for (const std::int64_t window_elements : {1, 50, 1 << 20}) {
      Setting offloaded_setting = setting;
      offloaded_setting.offload = offload;
      offloaded_setting.window_elements = window_elements;
      ToyFixture here(cpu, world(), engine, setting),
          offloaded(cpu, world(), engine, offloaded_setting);
      EXPECT_EQ(offloaded.working(), here.working()) << "the initial weights";
      for (int step = 1; step <= 3; ++step) {
        const StepOutcome a = here.step(step), b = offloaded.step(step);
        EXPECT_TRUE(a.applied && b.applied);
        EXPECT_EQ(a.grad_norm, b.grad_norm);
        EXPECT_EQ(offloaded.working(), here.working()) << "after step " << step;
      }
      const auto same = [](const Tensor& x, const Tensor& y) {
        return x.bytes() == y.bytes() &&
               std::memcmp(x.data, y.data, static_cast<std::size_t>(x.bytes())) == 0;
      };
      EXPECT_TRUE(same(offloaded.store.flat_master(), here.store.flat_master()));
      for (std::size_t slot = 0; slot < here.optimizer.slots().size(); ++slot) {
        EXPECT_TRUE(same(offloaded.optimizer.slots()[slot].flat, here.optimizer.slots()[slot].flat))
            << here.optimizer.slots()[slot].name;
      }
    }
  }
}

std::vector<Setting> offload_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : kinds) {
    for (const OptimizerKind optimizer : optimizers) {
      settings.push_back({kind, false, 2, DType::float32, optimizer});
      settings.push_back({kind, true, 3, DType::bfloat16, optimizer});
    }
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, Offloading, testing::ValuesIn(offload_settings()),
                         [](const auto& info) { return name_of(info.param); });

class DeviceSharding : public testing::TestWithParam<Setting> {};

TEST_P(DeviceSharding, TheBitsAreTheHosts) {
  for (const parallel::Offload& offload : {on_device, slots_on_host, both_on_host}) {
    Setting setting = GetParam();
    setting.offload = offload;
    comm::Engine engine(comm::Engine::ProgressMode::polled);
    ToyFixture here(cpu, world(), engine, setting),
        there({DeviceKind::emulated, 0}, world(), engine, setting);
    EXPECT_EQ(there.working(), here.working()) << "the initial weights";
    for (int step = 1; step <= 3; ++step) {
      const StepOutcome a = here.step(step), b = there.step(step);
      EXPECT_TRUE(a.applied && b.applied);
      EXPECT_EQ(a.grad_norm, b.grad_norm);
      EXPECT_EQ(there.working(), here.working()) << "after step " << step;
    }
    EXPECT_EQ(there.state(), here.state());
  }
}

std::vector<Setting> device_settings() {
  std::vector<Setting> settings;
  for (const ShardKind kind : kinds) {
    settings.push_back({kind, false, 2, DType::float32, OptimizerKind::adamw});
    settings.push_back({kind, true, 3, DType::bfloat16, OptimizerKind::lamb});
  }
  return settings;
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceSharding, testing::ValuesIn(device_settings()),
                         [](const auto& info) { return name_of(info.param); });

/// Replicas that trained independently, on the host and on a device, with slots in device and in
/// host memory.
TEST(DevicePeriodicAverage, ReplicasAreAveragedToTheHostsBits) {
  for (const parallel::Offload& offload : {on_device, slots_on_host}) {
    Setting setting{ShardKind::none, true, 2, DType::bfloat16, OptimizerKind::adamw};
    comm::Engine engine(comm::Engine::ProgressMode::polled);
    ToyFixture here(cpu, comm::Communicator(), engine, setting);
    setting.offload = offload;
    ToyFixture there({DeviceKind::emulated, 0}, comm::Communicator(), engine, setting);
    std::vector<std::byte> states[2];
    for (ToyFixture* toy : {&here, &there}) {
      toy->first_micro_batch = 2 * world().rank();
      parallel::PeriodicAverage average(toy->store, toy->optimizer.state_buffers(), world(), engine,
                                        {.outer_momentum = 0.5, .deterministic = true}, toy->slots);
      average.anchor(toy->context);
      for (int step = 1; step <= 4; ++step) {
        toy->step(step);
        if (step % 2 == 0) average.average(toy->context);
      }
      std::vector<std::byte>& state = states[toy == &here ? 0 : 1];
      state = toy->state();
      toy->add_bytes(average.velocity(), state);
    }
    EXPECT_EQ(states[0], states[1]);
    EXPECT_EQ(there.working(), here.working());
  }
}

std::int64_t in_arena(std::int64_t bytes) {
  return (bytes + Arena::alignment - 1) / Arena::alignment * Arena::alignment;
}

TEST(ShardedMemory, IsTheOwnShardsAndTheBucketsInUse) {
  if (world().size() == 1) return;
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    for (const bool deterministic : {false, true}) {
      for (const std::int64_t per_rank : {1, 3}) {
        ToyFixture toy(
            cpu, world(), engine,
            {ShardKind::parameters, deterministic, per_rank, compute, OptimizerKind::adamw});
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
      const Setting setting{kind, true, 1, compute, OptimizerKind::adamw};
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
        const Setting setting{kind,   deterministic, 3, DType::bfloat16, OptimizerKind::lamb,
                              offload};
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
                     {kind, true, 3, DType::bfloat16, OptimizerKind::lamb, offload});
      for (int step = 1; step <= 2; ++step) toy.step(step);
      const std::int64_t before = allocations_so_far();
      for (int step = 3; step <= 5; ++step) toy.step(step);
      EXPECT_EQ(allocations_so_far() - before, 0) << kind_names[static_cast<int>(kind)];
    }
  }
}

TEST(ShardedRestart, OwnShardsAreEnoughToMakeAllWorkingWeights) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const DType compute : {DType::float32, DType::bfloat16}) {
    ToyFixture whole(cpu, world(), engine, {ShardKind::none, true, 1, compute});
    whole.step(1);
    for (const ShardKind kind : kinds) {
      for (const parallel::Offload& offload : {on_device, masters_on_host}) {
        ToyFixture fresh(cpu, world(), engine,
                         {kind, true, 1, compute, OptimizerKind::sgd, offload});
        // Sets the master weights, as the restart from a checkpoint does.
        for (std::int32_t index = 0; index < static_cast<std::int32_t>(fresh.list.entries().size());
             ++index) {
          const parallel::ParameterShard::OwnedRows& part = fresh.store.owned().owned_rows({index});
          const Tensor own = fresh.store.master({index});
          const std::int64_t row = fresh.list.partition({index}).row_elements();
          std::copy_n(whole.store.flat_master().as<float>() + whole.layout.tensor({index}).offset +
                          part.row_begin * row,
                      own.elements(), own.as<float>());
        }
        const std::uint64_t version = fresh.store.version();
        fresh.store.refresh_working(fresh.context);
        EXPECT_GT(fresh.store.version(), version);
        EXPECT_EQ(fresh.working(), whole.working()) << kind_names[static_cast<int>(kind)];
      }
    }
  }
}

TEST(ShardedSteps, ANonFiniteStepChangesNothing) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const ShardKind kind : kinds) {
    for (const parallel::Offload& offload : {on_device, both_on_host}) {
      ToyFixture toy(cpu, world(), engine,
                     {kind, true, 1, DType::bfloat16, OptimizerKind::lamb, offload});
      toy.step(1);
      const std::vector<std::byte> before = toy.working();
      // Only the last rank owns the infinite value, and all ranks must detect it. Without sharding
      // all ranks hold it.
      if (kind == ShardKind::none || world().rank() + 1 == world().size()) {
        const parallel::ParameterShard& owned = toy.store.owned();
        const std::int64_t last = owned.windows().back().begin + owned.rows().back().offset;
        toy.store.flat_gradient().as<float>()[last] = std::numeric_limits<float>::infinity();
      }
      const StepOutcome outcome = toy.optimizer.step(toy.context, 0.05, true);
      toy.store.start_gather(toy.context);
      EXPECT_FALSE(outcome.applied);
      EXPECT_EQ(toy.working(), before);
      EXPECT_EQ(toy.optimizer.updates(), 1);
    }
  }
}

/// The ranks are stages of a pipeline: each holds some tensors of a model.
TEST(NormsOverTheModel, StagesTogetherGiveTheBitsOfOneRank) {
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  for (const OptimizerKind kind : optimizers) {
    const Setting setting{ShardKind::none, true, 1, DType::float32, kind};
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
    Optimizer optimizer(options_of(kind), store, groups, slots);

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
