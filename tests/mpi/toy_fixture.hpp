// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of sharding on several ranks: a replica without layers (store, reducer,
// optimizer) whose gradients are functions of the weights. Its settings and their names select how
// it is sharded, which optimizer it has, and where its state is.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "support/mpi.hpp"
#include "support/update_rules.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/optim/optimizer.hpp"
#include "trireme/parallel/gradient_reducer.hpp"

namespace trireme::optim {

using parallel::ParameterId;
using parallel::ShardKind;

inline constexpr Device cpu{DeviceKind::cpu, 0};
inline constexpr int blocks = 4;
inline constexpr parallel::Offload on_device{}, slots_on_host{.optimizer = true},
    masters_on_host{.parameters = true}, both_on_host{.optimizer = true, .parameters = true};
inline constexpr ShardKind kinds[] = {ShardKind::none, ShardKind::optimizer, ShardKind::gradients,
                                      ShardKind::parameters};

inline const comm::Communicator& world() { return test_environment().world(); }

/// Odd shapes: a tied embedding with a prime number of rows, vectors that cannot be divided, joined
/// projections, running statistics, fewer rows than ranks, and a block without parameters (2).
inline parallel::ParameterList toy_list() {
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
  list.declare(
      {.name = "q", .shape = {7, 11}, .initializer = normal, .form = parallel::MatrixForm::out_in});
  list.declare({.name = "k",
                .shape = {3, 11},
                .initializer = normal,
                .form = parallel::MatrixForm::in_out,
                .joined = true});
  list.declare({.name = "conv",
                .shape = {5, 3, 3, 3},
                .initializer = normal,
                .inner = parallel::InnerOrder::channels_last,
                .form = parallel::MatrixForm::out_in});
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
  const UpdateRule* optimizer = &rule("sgd");
  parallel::Offload offload = {};
  /// A part of the larger tensors, or several of the smaller ones.
  std::int64_t window_elements = 50;
  /// The rule of a group: k, q, and the weights of the head.
  const UpdateRule* group_rule = nullptr;
};

inline OptimizerOptions options_of(const UpdateRule& rule) {
  OptimizerOptions options = test::options_of(rule);
  options.clip_norm = 5;  // gradients are larger, so the norm affects every weight
  return options;
}
inline OptimizerOptions options_of(const Setting& setting) {
  OptimizerOptions options = options_of(*setting.optimizer);
  if (setting.group_rule == nullptr) return options;
  options.groups = {{.match = "?", .rule = setting.group_rule},
                    {.match = "head*", .rule = setting.group_rule}};
  return options;
}

inline double to_double(const Tensor& tensor, std::int64_t i) {
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
        list(prepared_list(options_of(setting))),
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
        optimizer(options_of(setting), store, {},
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
  static parallel::ParameterList prepared_list(const OptimizerOptions& options) {
    parallel::ParameterList list = toy_list();
    prepare(options, list);
    return list;
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
    for (const parallel::StateEntry& slot : test::slots_of(optimizer)) add_bytes(slot.flat, bytes);
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
    const parallel::StateList slots = test::slots_of(optimizer),
                              of_whole = test::slots_of(whole.optimizer);
    for (std::int32_t index = 0; index < static_cast<std::int32_t>(list.entries().size());
         ++index) {
      const parallel::ParameterShard::OwnedRows& part = store.owned().owned_rows({index});
      const std::int64_t row = list.partition({index}).row_elements(),
                         begin = whole.layout.tensor({index}).offset + part.row_begin * row;
      for (std::int64_t i = 0; i < (part.row_end - part.row_begin) * row; ++i) {
        each(store.flat_master().as<float>()[part.offset + i],
             whole.store.flat_master().as<float>()[begin + i]);
        for (std::size_t slot = 0; slot < slots.size(); ++slot)
          each(slots[slot].flat.as<float>()[part.offset + i],
               of_whole[slot].flat.as<float>()[begin + i]);
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

inline constexpr const char* kind_names[] = {"none", "optimizer", "gradients", "parameters"};

inline std::string name_of(const Setting& setting) {
  return std::string(kind_names[static_cast<int>(setting.kind)]) +
         (setting.deterministic ? "_tree_" : "_plain_") + std::to_string(setting.per_rank) + "_" +
         (setting.compute == DType::bfloat16 ? "bfloat16_" : "float32_") + setting.optimizer->word +
         (setting.group_rule != nullptr ? "_beside_" + std::string(setting.group_rule->word) : "");
}

}  // namespace trireme::optim
