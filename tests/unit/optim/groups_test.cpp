// SPDX-License-Identifier: Apache-2.0
//
// Parameter groups: patterns, the first match, refused groups, and frozen tensors in the optimizer.

#include "trireme/optim/groups.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "optimizer_fixture.hpp"
#include "trireme/base/error.hpp"

namespace trireme::optim {
namespace {

using testing::HasSubstr;

TEST(Groups, PatternsMatchWholeNames) {
  struct Case {
    const char *pattern, *name;
    bool matches;
  };
  for (const Case& c : {Case{"*", "", true},
                        {"*", "fc.weight", true},
                        {"fc.*", "fc.weight", true},
                        {"fc.*", "xfc.weight", false},
                        {"fc", "fc.weight", false},
                        {"*.weight", "h.0.attn.weight", true},
                        {"*.weight", "weight", false},
                        {"h.?.attn*", "h.3.attn.bias", true},
                        {"h.?.attn*", "h.10.attn.bias", false},
                        {"*a*b", "xaxxbxb", true},
                        {"*a*b", "xaxxbxc", false},
                        {"a**", "a", true},
                        {"?", "", false},
                        {"", "", true},
                        {"", "a", false},
                        {"[a]", "a", false}})
    EXPECT_EQ(matches(c.pattern, c.name), c.matches) << c.pattern << " " << c.name;
}

/// A star that takes more characters one by one costs the product of the lengths, not more.
TEST(Groups, ManyStarsAreFast) {
  std::string pattern;
  for (int i = 0; i < 200; ++i) pattern += "*a";
  EXPECT_FALSE(matches(pattern + "b", std::string(5000, 'a')));
}

TEST(Groups, TheFirstMatchCountsAndStatisticsAreInNone) {
  const parallel::ParameterList list = small_parameter_list();
  const std::vector<ParameterGroup> groups = {{.match = "fc.bias"}, {.match = "*"}};
  EXPECT_EQ(group_of(groups, list[{4}]), &groups[0]);
  EXPECT_EQ(group_of(groups, list[{3}]), &groups[1]);
  EXPECT_EQ(group_of(groups, list[{2}]), nullptr) << list[{2}].name;
}

/// Returns the error message of these groups, or an empty string.
std::string error_of(const std::vector<ParameterGroup>& groups,
                     const parallel::ParameterList& list = small_parameter_list()) {
  try {
    OptimizerOptions options;
    options.groups = groups;
    validate_groups(options, list);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

TEST(Groups, AGroupNeedsAWeight) {
  EXPECT_EQ(error_of({{.match = "fc.*"}, {.match = "bn.w*"}}), "");
  EXPECT_EQ(
      error_of({{.match = "fc.*"}, {.match = "head.*"}}),
      "optimizer.groups: group 2 (match = \"head.*\") matches no weight of the model; "
      "correct match, or remove the group; the weights are conv.weight, bn.weight, fc.weight, "
      "fc.bias");
  EXPECT_NE(error_of({{.match = "bn.running_mean"}}), "") << "a running statistic";
  EXPECT_EQ(
      error_of({{.match = "f*"}, {.match = "fc.bias"}}),
      "optimizer.groups: group 2 (match = \"fc.bias\") has no effect: earlier groups match its "
      "1 weight too, and the first match counts; move it in front of them, or remove it");
}

TEST(Groups, AreDescribedForTheLog) {
  EXPECT_EQ(describe_groups({{.match = "fc.*", .rate_ratio = 10, .decay = 0},
                             {.match = "bn*", .frozen = true},
                             {.match = "*"}},
                            small_parameter_list()),
            "\"fc.*\": 2 tensors, 42 weights, rate x 10, decay 0; \"bn*\": 1 tensor, 3 weights, "
            "frozen; \"*\": 1 tensor, 54 weights");
}

TEST(Groups, SomethingMustBeTrained) {
  EXPECT_THAT(error_of({{.match = "*", .frozen = true}}),
              HasSubstr("all 4 weights of the model are frozen"));
  EXPECT_EQ(error_of({{.match = "fc.bias"}, {.match = "*", .frozen = true}}), "");
}

TEST(Groups, ARuleOfMatricesNeedsOne) {
  EXPECT_EQ(error_of({{.match = "*.bias", .rule = &rule("muon")}}),
            "optimizer.groups: group 1 (match = \"*.bias\") has rule = \"muon\", which is for "
            "matrices of hidden layers, but no such matrix: biases, norms, embeddings and the head "
            "have rule \"adamw\"; remove rule");
  EXPECT_EQ(error_of({{.match = "fc.*", .rule = &rule("muon")}}), "");
  EXPECT_EQ(error_of({{.match = "*.bias", .rule = &rule("sgd")}}), "");
}

TEST(Groups, ARuleOfMatricesIsRefusedWhereNoneIsLeft) {
  OptimizerOptions options = options_of("muon");
  const parallel::ParameterList list = small_parameter_list();
  EXPECT_NO_THROW(validate_groups(options, list));
  EXPECT_EQ(describe_rules(options, list),
            "muon: 2 tensors, 89 weights; adamw: 2 tensors, 10 weights");
  EXPECT_EQ(describe_rules(options_of("sgd"), list), "");
  options.groups = {{.match = "conv.*", .frozen = true}, {.match = "fc.*", .rule = &rule("adamw")}};
  EXPECT_THAT([&] { validate_groups(options, list); },
              testing::ThrowsMessage<InputError>(HasSubstr("freeze all of them")));
  parallel::ParameterList vectors;
  vectors.begin_block(0);
  vectors.declare({.name = "norm", .shape = {3}});
  EXPECT_THAT([&] { validate_groups(options_of("muon"), vectors); },
              testing::ThrowsMessage<InputError>(HasSubstr("the model has none; use kind = "
                                                           "\"adamw\"")));
}

/// Other code asks no rule for what it does with them.
TEST(Groups, EveryRuleOfMatricesNamesOneForOtherWeights) {
  for (const UpdateRule* used : rules()) {
    const bool of_matrices = used->scope == RuleScope::matrix;
    EXPECT_EQ(used->rule_of_others != nullptr, of_matrices) << used->word;
    EXPECT_EQ(used->direction_of_matrix != nullptr, of_matrices) << used->word;
    EXPECT_EQ(used->flops_of_matrix != nullptr, of_matrices) << used->word;
    EXPECT_EQ(used->scale_of_matrix != nullptr, of_matrices) << used->word;
  }
}

TEST(Groups, OtherWeightsThanMatricesHaveTheRuleThatTheirsNames) {
  OptimizerOptions options = options_of("muon");
  options.groups = {{.match = "conv.*", .rule = &rule("sgd")}};
  const parallel::ParameterList list = small_parameter_list();
  EXPECT_EQ(&rule_of(options, list[{0}]), &rule("sgd"));
  EXPECT_EQ(&rule_of(options, list[{1}]), &rule("adamw")) << list[{1}].name;
  EXPECT_EQ(&rule_of(options, list[{3}]), &rule("muon")) << list[{3}].name;
  EXPECT_EQ(&rule_of(options, list[{4}]), &rule("adamw")) << list[{4}].name;
}

TEST(Groups, OperandsOfOneProductAreFrozenTogether) {
  parallel::ParameterList list;
  list.begin_block(0);
  list.declare({.name = "q", .shape = {2, 3}});
  list.declare({.name = "k", .shape = {2, 3}, .joined = true});
  list.declare({.name = "up", .shape = {2, 3}});
  EXPECT_EQ(error_of({{.match = "k", .frozen = true}}, list),
            "optimizer.groups: freezes k, but not q; one matrix product reads both, so freeze both "
            "or none");
  EXPECT_EQ(error_of({{.match = "?", .frozen = true}}, list), "");
  EXPECT_EQ(error_of({{.match = "k", .rate_ratio = 2}}, list), "");
}

/// An optimizer whose groups freeze some of the tensors of the small model.
struct FrozenFixture {
  explicit FrozenFixture(const OptimizerOptions& options, bool offloaded = false)
      : memory({}, "memory", 1 << 20),
        host({}, "host", 1 << 20),
        workspace({}, "workspace", 1 << 20),
        library({}, "library", 1 << 16),
        context(test::test_stream(DeviceKind::cpu), workspace, library, DeviceKind::cpu),
        list(frozen_list(options)),
        layout(list, 1 << 20, DType::bfloat16),
        store(list, layout, {parallel::ShardKind::none, {}, nullptr, offloaded ? 20 : 0},
              {memory, offloaded ? &host : nullptr}, memory),
        optimizer(options, store, {}, {memory, offloaded ? &host : nullptr}) {
    store.initialize(context, 7);
    optimizer.start_ema(context);
  }
  static parallel::ParameterList frozen_list(const OptimizerOptions& options) {
    parallel::ParameterList list = small_parameter_list();
    validate_groups(options, list);
    prepare(options, list);
    return list;
  }
  void step(int number) {
    for (int t = 0; t < tensors; ++t) {
      if (!store.needs_gradient({t})) continue;
      Values numbers(static_cast<std::size_t>(store.gradient({t}).elements()));
      for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers[i] = OptimizerFixture::gradient_at(number, t, static_cast<std::int64_t>(i));
      assign(store.gradient({t}), numbers);
    }
    EXPECT_TRUE(optimizer.step(context, 0.1, true).applied);
  }
  Values average_of(int tensor) const {
    const auto& owned = store.owned().owned_rows({tensor});
    return values(
        optimizer.ema().rows(owned.offset, owned.offset + list.partition({tensor}).elements()));
  }

  Arena memory, host, workspace, library;
  ops::Context context;
  parallel::ParameterList list;
  parallel::FlatLayout layout;
  parallel::ParameterStore store;
  Optimizer optimizer;
};

/// Tensors: 0 conv.weight, 1 bn.weight, 2 bn.running_mean, 3 fc.weight, 4 fc.bias.
TEST(Groups, FrozenTensorsKeepTheirValuesAndHaveNoSlots) {
  for (const bool offloaded : {false, true}) {
    for (const UpdateRule* used : rules()) {
      OptimizerOptions options = options_of(*used);
      options.ema = 0.5;
      options.groups = {{.match = "bn.*", .frozen = true}, {.match = "fc.weight", .frozen = true}};
      FrozenFixture fixture(options, offloaded);
      std::vector<Values> before;
      for (int t = 0; t < tensors; ++t) before.push_back(values(fixture.store.master({t})));
      for (int step = 1; step <= 3; ++step) fixture.step(step);
      synchronize(fixture.context.stream());
      for (int t = 0; t < tensors; ++t) {
        const bool frozen = t == 1 || t == 3;
        EXPECT_EQ(values(fixture.store.master({t})) == before[static_cast<std::size_t>(t)], frozen)
            << fixture.list[{t}].name;
        EXPECT_EQ(fixture.average_of(t) == before[static_cast<std::size_t>(t)], frozen)
            << fixture.list[{t}].name;
      }
      // 54 of conv.weight, 7 of fc.bias, 3 of the running mean, each from a multiple of 16.
      EXPECT_EQ(fixture.layout.trained_elements(), 16 + 64 + 16);
      EXPECT_EQ(fixture.store.flat_gradient().elements(), 96);
      for (const parallel::StateEntry& slot : slots_of(fixture.optimizer))
        EXPECT_EQ(slot.flat.elements(), 96) << slot.group;
    }
  }
}

/// Trained tensors do not depend on frozen ones, if no norm joins them.
TEST(Groups, TheOtherTensorsHaveTheBitsOfARunWithoutGroups) {
  OptimizerOptions options = options_of("adamw");
  FrozenFixture whole(options);
  options.groups = {{.match = "conv.*", .frozen = true}};
  FrozenFixture frozen(options);
  for (int step = 1; step <= 3; ++step) {
    whole.step(step);
    frozen.step(step);
  }
  for (const int t : {1, 2, 3, 4})
    EXPECT_EQ(values(whole.store.master({t})), values(frozen.store.master({t})));
}

}  // namespace
}  // namespace trireme::optim
