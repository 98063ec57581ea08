// SPDX-License-Identifier: Apache-2.0
#pragma once

// Shared by the tests of the optimizer: a small model with an optimizer on one device, and the
// options of each rule. Gradients are functions of the step, the tensor and the element, so that
// two fixtures can be compared step by step. Nothing here needs MPI.

#include <cmath>
#include <cstdint>
#include <optional>

#include "kernels/reference.hpp"
#include "support/update_rules.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/optim/optimizer.hpp"

namespace trireme::optim {

using parallel::Role;
using test::assign;
using test::options_of;
using test::slots_of;
using test::tested_device;
using test::Values;
using test::values;

inline constexpr int tensors = 5;

/// A small model of each kind of parameter: two blocks, a convolution in channels-last order, a
/// norm, running statistics, and a linear layer of odd sizes.
inline parallel::ParameterList small_parameter_list() {
  parallel::ParameterList list;
  const parallel::Initializer normal{parallel::Initializer::Kind::normal, 0.5};
  list.begin_block(0);
  list.declare({.name = "conv.weight",
                .shape = {3, 2, 3, 3},
                .initializer = normal,
                .inner = parallel::InnerOrder::channels_last,
                .form = parallel::MatrixForm::out_in});
  list.declare({.name = "bn.weight",
                .shape = {3},
                .initializer = {.value = 1},
                .decay = false,
                .trust = false,
                .compute_copy = false});
  list.declare({.name = "bn.running_mean",
                .shape = {3},
                .initializer = {.value = 0.25},
                .role = Role::statistic,
                .decay = false,
                .trust = false,
                .compute_copy = false});
  list.begin_block(1);
  list.declare({.name = "fc.weight",
                .shape = {5, 7},
                .initializer = normal,
                .form = parallel::MatrixForm::in_out});
  list.declare({.name = "fc.bias",
                .shape = {7},
                .initializer = {.value = 0.1},
                .decay = false,
                .trust = false,
                .compute_copy = false});
  return list;
}

/// Device, compute type and memory of a fixture.
struct FixtureOptions {
  DeviceKind kind = tested_device();
  DeviceKind target = tested_device();  ///< for meta: the device that is planned
  DType compute = DType::float32;
  bool offloaded = false;  ///< master weights and slots are offloaded to host memory
  std::optional<LossScaleOptions> scaling = {};
};

/// An optimizer with everything that it needs, on one device.
struct OptimizerFixture {
  explicit OptimizerFixture(const OptimizerOptions& options,
                            const FixtureOptions& fixture_options = {})
      : device{fixture_options.kind, 0},
        memory(device, "memory", 1 << 20),
        state(device, "optimizer state", 1 << 20),
        host(fixture_options.kind == DeviceKind::meta ? device : Device{}, "host state", 1 << 20,
             in_host_memory(fixture_options.kind) ? Pages::pageable : Pages::pinned),
        workspace(device, "workspace", 1 << 20),
        library(device, "library", 1 << 16),
        context(test::test_stream(fixture_options.kind), workspace, library,
                ops::target_of(fixture_options.target)),
        list(prepared_list(options)),
        layout(list, 1 << 20, fixture_options.compute),
        store(list, layout,
              {parallel::ShardKind::none, {}, nullptr, fixture_options.offloaded ? 20 : 0},
              {memory, fixture_options.offloaded ? &host : nullptr, fixture_options.target},
              memory),
        optimizer(options, store, {},
                  {state, fixture_options.offloaded ? &host : nullptr, fixture_options.target},
                  fixture_options.scaling) {
    store.initialize(context, 7);
  }

  static parallel::ParameterList prepared_list(const OptimizerOptions& options) {
    parallel::ParameterList list = small_parameter_list();
    prepare(options, list);
    return list;
  }

  /// Returns the gradient of an element, the same for every fixture: a function of step, tensor and
  /// element.
  static double gradient_at(int step, int tensor, std::int64_t i) {
    return 0.3 * std::sin(1.7 * step + 2.3 * tensor + 0.9 * static_cast<double>(i)) + 0.05;
  }
  void fill_gradient(int step, double factor = 1) {
    for (int t = 0; t < tensors; ++t) {
      Values numbers(static_cast<std::size_t>(store.gradient({t}).elements()));
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = factor * gradient_at(step, t, static_cast<std::int64_t>(i));
      assign(store.gradient({t}), numbers);
    }
  }
  /// Fills the gradient of the scaled loss. Running statistics are not scaled.
  void fill_scaled_gradient(int number) {
    fill_gradient(number, optimizer.loss_scale().scale);
    Values numbers(static_cast<std::size_t>(store.gradient({2}).elements()));
    for (std::size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = gradient_at(number, 2, static_cast<std::int64_t>(i));
    assign(store.gradient({2}), numbers);
  }
  StepOutcome scaled_step(int number, double rate) {
    fill_scaled_gradient(number);
    return optimizer.step(context, rate, true, optimizer.loss_scale().scale);
  }
  StepOutcome step(int number, double rate, double factor = 1) {
    fill_gradient(number, factor);
    return optimizer.step(context, rate, true);
  }
  Values all() const {
    synchronize(context.stream());  // copies to host memory may be in flight
    Values numbers;
    const auto add = [&numbers](const Tensor& flat) {
      const Values more = values(flat);
      numbers.insert(numbers.end(), more.begin(), more.end());
    };
    add(store.flat_master());
    for (const parallel::StateEntry& slot : slots_of(optimizer)) add(slot.flat);
    if (optimizer.ema().defined()) add(optimizer.ema());
    return numbers;
  }

  Device device;
  Arena memory, state, host, workspace, library;
  ops::Context context;
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  parallel::ParameterStore store;
  Optimizer optimizer;
};

}  // namespace trireme::optim
