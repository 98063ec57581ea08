// SPDX-License-Identifier: Apache-2.0
//
// Optimizer rules: SGD, LARS, AdamW and LAMB against a double-precision reference, in every element
// of weights and running statistics. Weight decay, clipping and the trust ratio's limits are part
// of the rules. See optimizer_state_test.cpp for state and devices, loss_scale_test.cpp for skipped
// steps and loss scaling.

#include "trireme/optim/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "optimizer_fixture.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::optim {
namespace {

/// The steps of an optimizer in double precision, by the rules of support/update_rules.hpp.
struct ReferenceOptimizer {
  OptimizerOptions options;
  std::vector<test::ReferenceTensor> state;
  int updates = 0;

  ReferenceOptimizer(const OptimizerOptions& options_, const OptimizerFixture& fixture)
      : options(options_) {
    for (int t = 0; t < tensors; ++t) {
      const Values weight = values(fixture.store.master({t}));
      state.push_back({weight, Values(weight.size(), 0.0), Values(weight.size(), 0.0)});
    }
  }

  /// Applies one step and returns the gradient's norm before clipping.
  double step(int number, double rate, const parallel::ParameterList& list) {
    ++updates;
    std::vector<std::vector<double>> gradients;
    double square = 0;
    for (int t = 0; t < tensors; ++t) {
      gradients.emplace_back();
      for (std::size_t i = 0; i < state[t].weight.size(); ++i)
        gradients[t].push_back(static_cast<float>(
            OptimizerFixture::gradient_at(number, t, static_cast<std::int64_t>(i))));
      if (list[{t}].role != Role::weight) continue;
      if (options.clip_value > 0)
        for (double& g : gradients[t]) g = std::clamp(g, -options.clip_value, options.clip_value);
      square += std::pow(test::norm(gradients[t]), 2);
    }
    const double total = std::sqrt(square);
    const double clip =
        options.clip_norm > 0 ? std::min(1.0, options.clip_norm / (total + 1e-6)) : 1;
    for (int t = 0; t < tensors; ++t) {
      const parallel::ParameterSpec& spec = list[{t}];
      if (spec.role == Role::statistic) {
        for (std::size_t i = 0; i < state[t].weight.size(); ++i)
          state[t].weight[i] = 0.9 * state[t].weight[i] + 0.1 * gradients[t][i];
        continue;
      }
      for (double& g : gradients[t]) g *= clip;
      const double decay = spec.decay || options.decay_all ? options.weight_decay : 0;
      const ParameterGroup* group = group_of(options.groups, spec);
      test::case_of(rule_of(options, spec))
          .update(options, state[t], gradients[t],
                  {.rate = rate * (group != nullptr ? group->rate_ratio : 1),
                   .decay = group != nullptr ? group->decay.value_or(decay) : decay,
                   .trusts = spec.trust && (group == nullptr || group->trust),
                   .max_trust = group != nullptr && group->trust_max
                                    ? *group->trust_max
                                    : std::numeric_limits<double>::infinity(),
                   .updates = updates,
                   .rows = static_cast<std::size_t>(spec.rows()),
                   .columns = static_cast<std::size_t>(spec.row_elements()),
                   .in_out = spec.form == parallel::MatrixForm::in_out});
    }
    return total;
  }
};

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
      EXPECT_NEAR(weight[i], reference.state[t].weight[i], 5e-6)
          << fixture.list[{t}].name << " " << i;
    }
  }
}

TEST(Optimizer, EveryRuleFollowsItsFormula) {
  for (const UpdateRule* used : rules()) {
    SCOPED_TRACE(used->word);
    expect_agrees(options_of(*used));
  }
}

TEST(Optimizer, TheOtherFormOfMomentumFollowsItsRule) {
  for (const UpdateRule* used : rules()) {
    if (!used->has_key("nesterov")) continue;
    SCOPED_TRACE(used->word);
    OptimizerOptions options = options_of(*used);
    options.nesterov = !options.nesterov;
    expect_agrees(options);
  }
}

TEST(Optimizer, TheOriginalScaleOfMuonFollowsItsFormula) {
  OptimizerOptions options = options_of("muon");
  options.scale = MatrixScale::original;
  expect_agrees(options);
}

TEST(Optimizer, AMomentumOfTheScheduleIsThatOfAllRules) {
  OptimizerOptions options = options_of("muon");
  options.groups = {{.match = "fc.*", .rule = &rule("sgd")}};
  OptimizerFixture varied(options);
  options.momentum = 0.8;
  OptimizerFixture fixed(options);
  for (int step = 1; step <= 2; ++step) {
    for (OptimizerFixture* fixture : {&varied, &fixed}) {
      fixture->fill_gradient(step);
      fixture->optimizer.begin_update(fixture->context, {.learning_rate = 0.1, .momentum = 0.8},
                                      {});
      fixture->optimizer.end_update();
    }
  }
  EXPECT_EQ(varied.all(), fixed.all());
}

TEST(Optimizer, GroupsLimitTrustRatios) {
  for (const UpdateRule* used : rules()) {
    if (used->trust == nullptr) continue;
    SCOPED_TRACE(used->word);
    OptimizerFixture usual(options_of(*used));
    for (const ParameterGroup& group : {ParameterGroup{.match = "*", .trust = false},
                                        ParameterGroup{.match = "*", .trust_max = 1e-3}}) {
      OptimizerOptions options = options_of(*used);
      options.groups = {group};
      expect_agrees(options);
      OptimizerFixture limited(options);
      usual.step(1, 0.1);
      limited.step(1, 0.1);
      EXPECT_NE(values(usual.store.master({3})), values(limited.store.master({3})));
    }
  }
}

TEST(Optimizer, PlainGradientDescentFollowsItsRule) {
  OptimizerOptions options = options_of("sgd");
  options.momentum = options.weight_decay = 0;
  expect_agrees(options);
}

TEST(Optimizer, LambLimitsTheTrustRatio) {
  OptimizerOptions options = options_of("lamb");
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
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.decay_all = true;
    expect_agrees(options);
  }
}

TEST(Optimizer, ClippingScalesTheWholeGradient) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.clip_norm = 0.5;  // the gradients' norm is about 1.8
    expect_agrees(options);
  }
}

TEST(Optimizer, ClippingOfValuesComesBeforeTheNorm) {
  for (const UpdateRule* used : rules()) {
    for (const double clip_norm : {0.0, 0.5}) {
      OptimizerOptions options = options_of(*used);
      options.clip_value = 0.2;  // the elements are between -0.25 and 0.35
      options.clip_norm = clip_norm;
      expect_agrees(options);
    }
  }
}

/// A scale is a power of two, so the clipped elements have the same bits under every scale.
TEST(Optimizer, ClippingOfValuesFollowsTheLossScale) {
  OptimizerOptions options = options_of("adamw");
  options.clip_value = 0.2;
  OptimizerFixture plain(options), scaled(options, {.scaling = LossScaleOptions{}});
  for (int step = 1; step <= 3; ++step) {
    plain.step(step, 0.1);
    scaled.scaled_step(step, 0.1);
  }
  EXPECT_EQ(plain.all(), scaled.all());
}

TEST(Optimizer, ClippingOfValuesDoesNotHideAnOverflow) {
  OptimizerOptions options = options_of("sgd");
  options.clip_value = 0.2;
  OptimizerFixture fixture(options);
  const Values before = fixture.all();
  EXPECT_FALSE(fixture.step(1, 0.1, HUGE_VAL).applied);
  EXPECT_EQ(fixture.all(), before);
}

TEST(Optimizer, GroupsHaveTheirRateAndDecay) {
  for (const UpdateRule* used : rules()) {
    OptimizerOptions options = options_of(*used);
    options.groups = {{.match = "fc.weight", .rate_ratio = 0.25},
                      {.match = "fc.*", .rate_ratio = 3, .decay = 0.1},
                      {.match = "*.weight", .decay = 0}};
    expect_agrees(options);
  }
}

/// Every pair of rules, of which the second has the groups in the middle of windows.
TEST(Optimizer, AGroupMayHaveARuleOfItsOwn) {
  for (const UpdateRule* own : rules()) {
    for (const UpdateRule* other : rules()) {
      SCOPED_TRACE(fmt::format("{} beside {}", other->word, own->word));
      OptimizerOptions options = options_of(*own);
      options.clip_value = 0.2;
      options.clip_norm = 0.5;
      options.groups = {{.match = "fc.weight", .rate_ratio = 0.5, .rule = other}};
      expect_agrees(options);
      options.groups.front().match = "conv.*";
      expect_agrees(options);
    }
  }
}

TEST(Optimizer, ClippingIgnoresStatisticsAndSmallGradients) {
  OptimizerOptions options = options_of("sgd");
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

TEST(Optimizer, LambTrustRatioIsOneForZeroNorms) {
  OptimizerOptions options = options_of("lamb");
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
  OptimizerOptions options = options_of("lars");
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

}  // namespace
}  // namespace trireme::optim
