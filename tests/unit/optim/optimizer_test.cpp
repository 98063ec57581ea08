// Optimizer: each rule against a double-precision reference, skipped steps, loss scaling, the
// moving average, restarts, memory on meta, waits of the host, and equal bits on all devices.

#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "emulated.hpp"
#include "kernels/reference.hpp"

namespace trireme::optim {
namespace {

using parallel::ParameterId;
using parallel::Role;
using test::assign;
using test::tested_device;
using test::Values;
using test::values;

constexpr int tensors = 5;

/// A small model of each kind of parameter: two blocks, a convolution in channels-last order, a
/// norm, running statistics, and a linear layer of odd sizes.
parallel::ParameterList small_parameter_list() {
  parallel::ParameterList list;
  const parallel::Initializer normal{parallel::Initializer::Kind::normal, 0.5};
  list.begin_block(0);
  list.declare({.name = "conv.weight",
                .shape = {3, 2, 3, 3},
                .initializer = normal,
                .inner = parallel::InnerOrder::channels_last});
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
  list.declare({.name = "fc.weight", .shape = {7, 5}, .initializer = normal});
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
        list(small_parameter_list()),
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
    for (const Optimizer::Slot& slot : optimizer.slots()) add(slot.flat);
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

/// The optimizer rules (docs/reference/numerics.md) in double precision, one tensor at a time.
struct ReferenceOptimizer {
  OptimizerOptions options;
  std::vector<std::vector<double>> weights, first, second;
  int updates = 0;

  ReferenceOptimizer(const OptimizerOptions& options_, const OptimizerFixture& fixture)
      : options(options_) {
    for (int t = 0; t < tensors; ++t) {
      weights.push_back(values(fixture.store.master({t})));
      first.emplace_back(weights.back().size(), 0.0);
      second.emplace_back(weights.back().size(), 0.0);
    }
  }

  static double norm(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value * value;
    return std::sqrt(sum);
  }

  /// Applies one step and returns the gradient's norm before clipping.
  double step(int number, double rate, const parallel::ParameterList& list) {
    ++updates;
    std::vector<std::vector<double>> gradients;
    double square = 0;
    for (int t = 0; t < tensors; ++t) {
      gradients.emplace_back();
      for (std::size_t i = 0; i < weights[t].size(); ++i)
        gradients[t].push_back(static_cast<float>(
            OptimizerFixture::gradient_at(number, t, static_cast<std::int64_t>(i))));
      if (list[{t}].role == Role::weight) square += std::pow(norm(gradients[t]), 2);
    }
    const double total = std::sqrt(square);
    const double clip =
        options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (total + 1e-6)) : 1;
    for (int t = 0; t < tensors; ++t) {
      const parallel::ParameterSpec& spec = list[{t}];
      if (spec.role == Role::statistic) {
        for (std::size_t i = 0; i < weights[t].size(); ++i)
          weights[t][i] = 0.9 * weights[t][i] + 0.1 * gradients[t][i];
        continue;
      }
      for (double& g : gradients[t]) g *= clip;
      update(t, gradients[t], rate, spec.decay || options.decay_all ? options.weight_decay : 0,
             spec.trust);
    }
    return total;
  }

  void update(int t, const std::vector<double>& g, double rate, double decay, bool trusts) {
    const double mu = options.momentum;
    double local = 1;
    std::vector<double> direction;  // lamb
    if (options.kind == OptimizerKind::lars && trusts && norm(weights[t]) > 0 && norm(g) > 0) {
      local = options.trust_coefficient * norm(weights[t]) / (norm(g) + decay * norm(weights[t]));
    }
    for (std::size_t i = 0; i < g.size(); ++i) {
      double &w = weights[t][i], &m = first[t][i], &v = second[t][i];
      switch (options.kind) {
        case OptimizerKind::sgd:
          m = mu * m + (g[i] + decay * w);
          w -= rate * (options.nesterov ? g[i] + decay * w + mu * m : m);
          break;
        case OptimizerKind::lars:
          m = mu * m + rate * local * (g[i] + decay * w);
          w -= m;
          break;
        case OptimizerKind::adamw:  // torch.optim.AdamW, the algorithm of its documentation
          w -= rate * decay * w;
          m = options.beta1 * m + (1 - options.beta1) * g[i];
          v = options.beta2 * v + (1 - options.beta2) * g[i] * g[i];
          w -= rate * (m / (1 - std::pow(options.beta1, updates))) /
               (std::sqrt(v / (1 - std::pow(options.beta2, updates))) + options.epsilon);
          break;
        case OptimizerKind::lamb:
          // You et al. 2020, algorithm 2: the direction. The weights change below, when its norm is
          // known.
          m = options.beta1 * m + (1 - options.beta1) * g[i];
          v = options.beta2 * v + (1 - options.beta2) * g[i] * g[i];
          direction.push_back(
              (m / (1 - std::pow(options.beta1, updates))) /
                  (std::sqrt(v / (1 - std::pow(options.beta2, updates))) + options.epsilon) +
              decay * w);
          break;
      }
    }
    const double ratio = trusts && norm(weights[t]) > 0 && norm(direction) > 0
                             ? std::min(10.0, norm(weights[t]) / norm(direction))
                             : 1;
    for (std::size_t i = 0; i < direction.size(); ++i) weights[t][i] -= rate * ratio * direction[i];
  }
};

OptimizerOptions options_of(OptimizerKind kind) {
  OptimizerOptions options;
  options.kind = kind;
  options.weight_decay = 0.02;
  if (kind == OptimizerKind::lars) options.trust_coefficient = 0.02;
  return options;
}

/// Expects several steps at changing rates to agree with the reference in every element of weights
/// and running statistics.
void expect_agrees(const OptimizerOptions& options) {
  OptimizerFixture fixture(options);
  ReferenceOptimizer reference(options, fixture);
  const std::uint64_t version = fixture.store.version();
  for (int step = 1; step <= 8; ++step) {
    const double rate = 0.1 / step;
    const double norm = reference.step(step, rate, fixture.list);
    const StepOutcome outcome = fixture.step(step, rate);
    EXPECT_TRUE(outcome.applied);
    // Sums in double of squares of the same float32 values. At most each square is rounded to
    // float32 first (6e-8).
    EXPECT_NEAR(outcome.grad_norm, norm, 1e-6 * norm);
  }
  EXPECT_EQ(fixture.optimizer.updates(), 8);
  EXPECT_EQ(fixture.store.version(), version + 8);
  for (int t = 0; t < tensors; ++t) {
    const Values weight = values(fixture.store.master({t}));
    for (std::size_t i = 0; i < weight.size(); ++i) {
      // About ten float32 roundings (6e-8) a step on values of order 1, eight steps: 5e-6.
      EXPECT_NEAR(weight[i], reference.weights[t][i], 5e-6) << fixture.list[{t}].name << " " << i;
    }
  }
}

TEST(Optimizer, SgdFollowsItsRule) { expect_agrees(options_of(OptimizerKind::sgd)); }

TEST(Optimizer, NesterovFollowsItsRule) {
  OptimizerOptions options = options_of(OptimizerKind::sgd);
  options.nesterov = true;
  expect_agrees(options);
}

TEST(Optimizer, PlainGradientDescentFollowsItsRule) {
  OptimizerOptions options = options_of(OptimizerKind::sgd);
  options.momentum = options.weight_decay = 0;
  expect_agrees(options);
}

TEST(Optimizer, LarsFollowsItsRule) { expect_agrees(options_of(OptimizerKind::lars)); }

TEST(Optimizer, AdamWFollowsPyTorchs) { expect_agrees(options_of(OptimizerKind::adamw)); }

TEST(Optimizer, LambFollowsItsRule) { expect_agrees(options_of(OptimizerKind::lamb)); }

TEST(Optimizer, LambLimitsTheTrustRatio) {
  OptimizerOptions options = options_of(OptimizerKind::lamb);
  options.weight_decay = 0;
  OptimizerFixture large(options);
  // The first direction is the sign of the gradient, of norm sqrt(35). Weights of norm 100 sqrt(35)
  // would have a trust ratio of 100.
  assign(large.store.master({3}), Values(35, 100));
  large.step(1, 0.01);
  const Values weight = values(large.store.master({3}));
  for (std::int64_t i = 0; i < 35; ++i) {
    const double direction = OptimizerFixture::gradient_at(1, 3, i) > 0 ? 1 : -1;
    EXPECT_NEAR(weight[static_cast<std::size_t>(i)], 100 - 0.01 * 10 * direction, 1e-5)
        << "a rounding of 100 is 4e-6";
  }
}

TEST(Optimizer, DecayAllIncludesBiases) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerOptions options = options_of(kind);
    options.decay_all = true;
    expect_agrees(options);
  }
}

TEST(Optimizer, ClippingScalesTheWholeGradient) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerOptions options = options_of(kind);
    options.clip_norm = 0.5;  // the gradients' norm is about 1.8
    expect_agrees(options);
  }
}

TEST(Optimizer, ClippingIgnoresStatisticsAndSmallGradients) {
  OptimizerOptions options = options_of(OptimizerKind::sgd);
  OptimizerFixture plain(options);
  options.clip_norm = 1e3;
  OptimizerFixture loose(options);
  options.clip_norm = 0.1;
  OptimizerFixture tight(options);
  for (int step = 1; step <= 3; ++step) {
    plain.step(step, 0.1);
    loose.step(step, 0.1);
    tight.step(step, 0.1);
  }
  EXPECT_EQ(plain.all(), loose.all());
  EXPECT_EQ(values(plain.store.master({2})), values(tight.store.master({2})));
}

TEST(Optimizer, SkipsAStepThatIsNotFinite) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerFixture fixture(options_of(kind)), twin(options_of(kind));
    fixture.step(1, 0.1);
    twin.step(1, 0.1);
    const auto skipped = [&](const StepOutcome& outcome) {
      EXPECT_FALSE(outcome.applied);
      EXPECT_EQ(fixture.all(), twin.all());
      EXPECT_EQ(fixture.optimizer.updates(), 1);
    };
    // Running statistics too: a value that is not finite would stay in them.
    for (int t = 0; t < tensors; ++t) {
      for (const float bad :
           {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
        fixture.fill_gradient(2);
        test::set_value(fixture.store.gradient({t}), 1, bad);
        skipped(fixture.optimizer.step(fixture.context, 0.1, true));
      }
    }
    fixture.fill_gradient(2);
    skipped(fixture.optimizer.step(fixture.context, 0.1, false));

    fixture.step(3, 0.1);
    twin.step(3, 0.1);
    EXPECT_EQ(fixture.all(), twin.all())
        << "bias correction and slots continue as without the skipped step";
  }
}

constexpr OptimizerKind all_kinds[] = {OptimizerKind::sgd, OptimizerKind::lars,
                                       OptimizerKind::adamw, OptimizerKind::lamb};

/// Scaling by a power of two rounds nothing, and statistics are not scaled.
TEST(LossScale, ScalingChangesNoBits) {
  for (const OptimizerKind kind : all_kinds) {
    OptimizerOptions options = options_of(kind);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    OptimizerFixture plain(options),
        scaled(options, {.scaling = LossScaleOptions{.initial = 4096}});
    for (OptimizerFixture* fixture : {&plain, &scaled})
      fixture->optimizer.start_ema(fixture->context);
    for (int step = 1; step <= 3; ++step) {
      const StepOutcome expected = plain.step(step, 0.1), found = scaled.scaled_step(step, 0.1);
      EXPECT_EQ(found.grad_norm, expected.grad_norm);
      EXPECT_EQ(scaled.all(), plain.all()) << "optimizer " << static_cast<int>(kind);
    }
    EXPECT_EQ(scaled.optimizer.loss_scale(), (LossScale{4096, 3}));
  }
}

TEST(LossScale, OverflowChangesOnlyTheScale) {
  for (const OptimizerKind kind : all_kinds) {
    OptimizerOptions options = options_of(kind);
    options.ema = 0.75;
    OptimizerFixture fixture(options,
                             {.scaling = LossScaleOptions{.initial = 4096, .backoff = 0.25}}),
        twin(options, {.scaling = LossScaleOptions{.initial = 4096}});
    for (OptimizerFixture* each : {&fixture, &twin}) {
      each->optimizer.start_ema(each->context);
      each->scaled_step(1, 0.1);
    }
    fixture.fill_scaled_gradient(2);
    test::set_value(fixture.store.gradient({3}), 1, std::numeric_limits<float>::infinity());
    const StepOutcome outcome = fixture.optimizer.step(fixture.context, 0.1, true, 4096);
    EXPECT_FALSE(outcome.applied);
    EXPECT_TRUE(outcome.overflow);
    EXPECT_EQ(fixture.all(), twin.all());
    EXPECT_EQ(fixture.optimizer.updates(), 1);
    EXPECT_EQ(fixture.optimizer.loss_scale(), (LossScale{1024, 0}));
    fixture.scaled_step(3, 0.1);
    twin.scaled_step(3, 0.1);
    EXPECT_EQ(fixture.all(), twin.all()) << "at another scale, as without the skipped step";
  }
}

TEST(LossScale, ResumesTheGrowthInterval) {
  const LossScaleOptions scaling{.initial = 64, .growth = 4, .interval = 3};
  OptimizerFixture uninterrupted(options_of(OptimizerKind::sgd), {.scaling = scaling}),
      resumed(options_of(OptimizerKind::sgd), {.scaling = scaling});
  for (int step = 1; step <= 5; ++step) uninterrupted.scaled_step(step, 0.1);
  EXPECT_EQ(uninterrupted.optimizer.loss_scale(), (LossScale{256, 2}));
  resumed.scaled_step(1, 0.1);
  resumed.optimizer.set_loss_scale({256, 2});
  resumed.scaled_step(6, 0.1);
  EXPECT_EQ(resumed.optimizer.loss_scale(), (LossScale{1024, 0}));
  EXPECT_EQ(resumed.optimizer.updates(), 2) << "the device counts its own updates";
}

TEST(LossScale, IgnoredWithoutScaling) {
  OptimizerFixture fixture(options_of(OptimizerKind::sgd));
  fixture.optimizer.set_loss_scale({256, 2});
  EXPECT_FALSE(fixture.optimizer.scales_loss());
  EXPECT_EQ(fixture.optimizer.loss_scale(), LossScale{});
}

TEST(Optimizer, LambTrustRatioIsOneForZeroNorms) {
  OptimizerOptions options = options_of(OptimizerKind::lamb);
  options.weight_decay = 0;
  OptimizerFixture fixture(options);
  assign(fixture.store.master({3}), Values(35, 0));
  fixture.step(1, 0.5);
  const Values weight = values(fixture.store.master({3}));
  // m^ / (sqrt(v^) + epsilon) is the gradient's sign, up to epsilon divided by gradients of 0.01
  // and more.
  for (std::size_t i = 0; i < weight.size(); ++i)
    EXPECT_NEAR(weight[i],
                OptimizerFixture::gradient_at(1, 3, static_cast<std::int64_t>(i)) > 0 ? -0.5 : 0.5,
                1e-5);
}

TEST(Optimizer, LarsTrustRatioIsOneForZeroNorms) {
  OptimizerOptions options = options_of(OptimizerKind::lars);
  options.weight_decay = 0;
  options.trust_coefficient = 1e-6;  // so that a local rate of 1 shows
  OptimizerFixture fixture(options);
  assign(fixture.store.master({3}), Values(35, 0));
  fixture.step(1, 0.5);
  const Values weight = values(fixture.store.master({3}));
  for (std::size_t i = 0; i < weight.size(); ++i) {
    const float gradient =
        static_cast<float>(OptimizerFixture::gradient_at(1, 3, static_cast<std::int64_t>(i)));
    EXPECT_FLOAT_EQ(static_cast<float>(weight[i]), -0.5f * gradient);
  }
}

TEST(Optimizer, GapsOfTheFlatBufferStayZero) {
  OptimizerFixture fixture(options_of(OptimizerKind::adamw));
  for (int step = 1; step <= 3; ++step) fixture.step(step, 0.1);
  std::vector<bool> used(static_cast<std::size_t>(fixture.layout.elements()));
  for (const auto& slot : fixture.layout.tensors())
    std::fill_n(used.begin() + slot.offset, slot.elements, true);
  const Values masters = values(fixture.store.flat_master());
  for (std::size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) {
      EXPECT_EQ(masters[i], 0.0);
    }
  }
}

TEST(Optimizer, WorkingWeightsEqualTheRoundedMaster) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerFixture fixture(options_of(kind), {.compute = DType::bfloat16});
    const auto bytes = [&] { return test::bytes_of(fixture.store.flat_working()); };
    const std::vector<std::byte> before = bytes();
    fixture.step(1, 0.1);
    const std::vector<std::byte> after = bytes();
    EXPECT_NE(after, before);
    fixture.store.refresh_working(fixture.context);
    EXPECT_EQ(after, bytes());
  }
}

/// The average by its definition, in double, from the weights after each applied step.
TEST(Optimizer, AverageFollowsWeightsAndStatistics) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerOptions options = options_of(kind);
    OptimizerFixture plain(options);
    options.ema = 0.75;
    OptimizerFixture fixture(options);
    fixture.optimizer.start_ema(fixture.context);
    const Tensor &weight = fixture.store.flat_master(), average = fixture.optimizer.ema();
    ASSERT_EQ(average.elements(), weight.elements());
    Values expected = values(weight);
    for (int step = 1; step <= 6; ++step) {
      fixture.fill_gradient(step);
      const bool applied = fixture.optimizer.step(fixture.context, 0.1, step != 4).applied;
      EXPECT_EQ(applied, step != 4);
      if (applied) plain.step(step, 0.1);
      const Values now = values(weight);
      for (std::size_t i = 0; i < expected.size() && applied; ++i)
        expected[i] += 0.25 * (now[i] - expected[i]);
    }
    const Values all = fixture.all();
    EXPECT_EQ(Values(all.begin(), all.end() - average.elements()), plain.all())
        << "the average does not change the weights";
    // At most three roundings to float32 (6e-8) of values of order 1 in each of five updates.
    const Values found = values(average);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(found[i], expected[i], 15 * 6e-8) << i;
  }
}

TEST(Optimizer, AverageIsSwappedWithTheWeights) {
  OptimizerOptions options = options_of(OptimizerKind::adamw);
  OptimizerFixture plain(options);
  plain.optimizer.start_ema(plain.context);
  EXPECT_FALSE(plain.optimizer.ema().defined());
  options.ema = 0.9;
  OptimizerFixture fixture(options);
  fixture.optimizer.start_ema(fixture.context);
  fixture.step(1, 0.1);
  const Values weights = values(fixture.store.flat_master()),
               averages = values(fixture.optimizer.ema());
  EXPECT_NE(weights, averages);
  fixture.optimizer.swap_ema(fixture.context);
  EXPECT_EQ(values(fixture.store.flat_master()), averages);
  EXPECT_EQ(values(fixture.optimizer.ema()), weights);
  EXPECT_EQ(fixture.state.peak_bytes() - plain.state.peak_bytes(), 4 * fixture.layout.elements())
      << "a slot more";
}

TEST(Optimizer, SlotsHaveTheDocumentedNames) {
  const auto names = [](OptimizerKind kind) {
    OptimizerFixture fixture(options_of(kind));
    std::vector<std::string> result;
    for (const Optimizer::Slot& slot : fixture.optimizer.slots()) result.push_back(slot.name);
    return result;
  };
  EXPECT_EQ(names(OptimizerKind::sgd), std::vector<std::string>{"momentum"});
  EXPECT_EQ(names(OptimizerKind::lars), std::vector<std::string>{"momentum"});
  EXPECT_EQ(names(OptimizerKind::adamw), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
  EXPECT_EQ(names(OptimizerKind::lamb), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}));
}

TEST(Optimizer, MetaMatchesADevicesCountersAndMemory) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    for (const DeviceKind device : {DeviceKind::cpu, DeviceKind::emulated}) {
      for (const bool offloaded : {false, true}) {
        OptimizerOptions options = options_of(kind);
        options.ema = 0.9;
        OptimizerFixture real(options, {device, device, DType::bfloat16, offloaded}),
            meta(options, {DeviceKind::meta, device, DType::bfloat16, offloaded});
        for (OptimizerFixture* fixture : {&real, &meta})
          fixture->optimizer.start_ema(fixture->context);
        real.step(1, 0.1);
        EXPECT_TRUE(meta.optimizer.step(meta.context, 0.1, true).applied);
        EXPECT_EQ(meta.optimizer.updates(), 1);
        for (OptimizerFixture* fixture : {&real, &meta})
          fixture->optimizer.swap_ema(fixture->context);
        EXPECT_EQ(meta.memory.peak_bytes(), real.memory.peak_bytes());
        EXPECT_EQ(meta.state.peak_bytes(), real.state.peak_bytes());
        EXPECT_EQ(meta.host.peak_bytes(), real.host.peak_bytes());
        EXPECT_EQ(meta.workspace.peak_bytes(), real.workspace.peak_bytes());
        EXPECT_EQ(meta.context.counters().bytes, real.context.counters().bytes);
        EXPECT_EQ(meta.context.counters().calls, real.context.counters().calls);
        EXPECT_GT(meta.context.counters().bytes, 0);
      }
    }
  }
}

/// A step copies nothing from pageable host memory, which would block the host, and reads nothing
/// back before its end.
TEST(Optimizer, HostWaitsOncePerStep) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerOptions options = options_of(kind);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    for (const bool offloaded : {false, true}) {
      OptimizerFixture fixture(options, {.kind = DeviceKind::emulated,
                                         .target = DeviceKind::emulated,
                                         .compute = DType::bfloat16,
                                         .offloaded = offloaded});
      fixture.optimizer.start_ema(fixture.context);
      fixture.step(1, 0.1);  // copies the tables to the device
      for (const bool finite : {true, false, true}) {
        fixture.fill_gradient(2);
        const std::uint64_t before = emulated::host_wait_count();
        EXPECT_EQ(fixture.optimizer.step(fixture.context, 0.05, finite).applied, finite);
        EXPECT_EQ(emulated::host_wait_count() - before, 1) << "away " << offloaded;
        fixture.optimizer.set_updates(fixture.optimizer.updates());
      }
      EXPECT_EQ(fixture.optimizer.updates(), 3);
    }
  }
}

/// After a restart the device continues from the number of updates that the host sets.
TEST(Optimizer, BiasCorrectionResumesFromSetUpdates) {
  OptimizerFixture uninterrupted(options_of(OptimizerKind::adamw)),
      resumed(options_of(OptimizerKind::adamw));
  for (int step = 1; step <= 3; ++step) uninterrupted.step(step, 0);  // changes the slots only
  resumed.step(1, 0);
  resumed.optimizer.set_updates(3);
  for (std::size_t slot = 0; slot < 2; ++slot)
    assign(resumed.optimizer.slots()[slot].flat,
           values(uninterrupted.optimizer.slots()[slot].flat));
  assign(resumed.store.flat_master(), values(uninterrupted.store.flat_master()));
  uninterrupted.step(4, 0.1);
  resumed.step(4, 0.1);
  EXPECT_EQ(resumed.all(), uninterrupted.all());
  EXPECT_EQ(resumed.optimizer.updates(), 4);
}

/// Master weights, slots, averages and norms have equal bits on all devices and with offloaded
/// state; so have the working weights where they are resident.
TEST(Optimizer, AllDevicesMatchTheCpuBitwise) {
  for (const OptimizerKind kind :
       {OptimizerKind::sgd, OptimizerKind::lars, OptimizerKind::adamw, OptimizerKind::lamb}) {
    OptimizerOptions options = options_of(kind);
    options.clip_norm = 0.5;
    options.ema = 0.75;
    for (const DType compute : {DType::float32, DType::bfloat16, DType::float16}) {
      OptimizerFixture expected(
          options, {.kind = DeviceKind::cpu, .target = DeviceKind::cpu, .compute = compute});
      expected.optimizer.start_ema(expected.context);
      std::vector<double> norms;
      for (int step = 1; step <= 3; ++step) norms.push_back(expected.step(step, 0.1).grad_norm);
      for (const bool offloaded : {false, true}) {
        OptimizerFixture found(options, {.kind = DeviceKind::emulated,
                                         .target = DeviceKind::emulated,
                                         .compute = compute,
                                         .offloaded = offloaded});
        found.optimizer.start_ema(found.context);
        for (int step = 1; step <= 3; ++step)
          EXPECT_EQ(found.step(step, 0.1).grad_norm, norms[static_cast<std::size_t>(step) - 1]);
        EXPECT_EQ(found.all(), expected.all()) << "away " << offloaded;
        if (!offloaded && compute != DType::float32) {
          EXPECT_EQ(test::bytes_of(found.store.flat_working()),
                    test::bytes_of(expected.store.flat_working()));
        }
        found.optimizer.swap_ema(found.context);
        found.optimizer.swap_ema(found.context);
        EXPECT_EQ(found.all(), expected.all()) << "after two swaps";
      }
    }
  }
}

}  // namespace
}  // namespace trireme::optim
