// SPDX-License-Identifier: Apache-2.0
//
// Tests search_layouts (plan/search/search.hpp): its result is that of predicting every layout of a
// small space, and no layout that fits is lost.
#include "trireme/plan/search/search.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/search/search_bounds.hpp"
#include "trireme/base/error.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::plan {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Field;
using testing::Gt;
using testing::HasSubstr;

/// A deck with its data, on a machine whose memory a test changes.
struct SearchFixture {
  std::string text, file = "deck.toml";
  std::vector<keys::Override> overrides;
  data::DatasetInfo train;
  Machine machine = read_machine("h100");

  SearchResult search(int ranks, int max_results, bool prune = true) const {
    const deck::Deck deck = deck::parse(text, file, overrides);
    return search_layouts({.deck = deck,
                           .text = text,
                           .file = file,
                           .overrides = overrides,
                           .train = train,
                           .machine = machine,
                           .device = DeviceKind::cuda,
                           .ranks = ranks,
                           .max_results = max_results,
                           .prune = prune});
  }
  void set(const std::string& key, const std::string& value) { overrides.push_back({key, value}); }
};

SearchFixture small_gpt() {
  SearchFixture fixture;
  fixture.text =
      "[run]\nname = \"small\"\nstop = \"10 steps\"\n"
      "[model]\nkind = \"gpt\"\nlayers = 3\nheads = 4\nwidth = 64\ncontext = 32\n"
      "[data]\ntrain = \"data\"\n[batch]\nglobal = 8\nmicro = 1\n"
      "[precision]\ncompute = \"bfloat16\"\n[optimizer]\nkind = \"adamw\"\nclip_norm = 1.0\n"
      "[schedule]\nkind = \"constant\"\nrate = 1e-3\n";
  fixture.train.kind = data::DatasetKind::tokens;
  fixture.train.samples = 1000;
  fixture.train.context = 32;
  fixture.train.vocabulary = 256;
  return fixture;
}

SearchFixture small_resnet() {
  SearchFixture fixture;
  fixture.text =
      "[run]\nname = \"small\"\nstop = \"10 steps\"\n"
      "[model]\nkind = \"resnet\"\ndepth = 8\nwidth = 16\n"
      "[data]\ntrain = \"data\"\n[batch]\nglobal = 16\nmicro = 4\n"
      "[optimizer]\nkind = \"sgd\"\nmomentum = 0.9\n"
      "[schedule]\nkind = \"constant\"\nrate = 0.1\n";
  fixture.train.samples = 1000;
  fixture.train.height = fixture.train.width = 16;
  fixture.train.channels = 3;
  fixture.train.target.count = 10;
  return fixture;
}

void expect_equal(const std::vector<FoundLayout>& found, const std::vector<FoundLayout>& expected,
                  std::size_t count) {
  ASSERT_EQ(found.size(), count);
  ASSERT_GE(expected.size(), count);
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_EQ(found[i].choice, expected[i].choice) << i;
    EXPECT_EQ(found[i].bytes, expected[i].bytes) << i;
    EXPECT_EQ(found[i].seconds(), expected[i].seconds()) << i;
  }
}

constexpr int all = 1'000'000;

/// Compares the bounds of layouts with their predictions.
void expect_bounds(const SearchFixture& fixture, const std::vector<FoundLayout>& layouts) {
  std::int64_t max_micro = 1;
  for (const FoundLayout& found : layouts) max_micro = std::max(max_micro, found.choice.micro);
  SearchBounds bounds(fixture.machine, DeviceKind::cuda, max_micro);
  double least_ratio = 1;
  for (const FoundLayout& found : layouts) {
    const train::ReplicaOptions options =
        train::make_replica_options(found.deck, fixture.train, found.layout);
    const parallel::MeshShape shape = found.layout.mesh_shape();
    const double ideal = bounds.ideal_seconds(options, shape),
                 undivided = bounds.recorded_seconds(options, shape),
                 staged = bounds.staged_seconds(options, shape);
    EXPECT_GT(ideal, 0);
    EXPECT_LE(ideal, undivided);
    EXPECT_LE(undivided, staged);
    EXPECT_LE(staged, found.step_seconds)
        << found.layout.ranks() << " ranks, tensor " << found.choice.tensor << ", pipeline "
        << found.choice.pipeline << " x " << found.choice.chunks << ", micro "
        << found.choice.micro;
    EXPECT_LE(bounds.state_bytes(options, shape), found.bytes);
    least_ratio = std::min(least_ratio, staged / found.step_seconds);
  }
  // A bound of nothing would pass too.
  EXPECT_GT(least_ratio, 0.1);
}

/// Compares the search with predictions of all layouts, of which about half do not fit.
void compare_with_all(SearchFixture fixture, int ranks) {
  const SearchResult large = fixture.search(ranks, all);
  EXPECT_EQ(large.too_large, 0);
  ASSERT_GT(large.best.size(), 20);
  std::vector<std::int64_t> bytes;
  for (const FoundLayout& layout : large.best) bytes.push_back(layout.bytes);
  std::sort(bytes.begin(), bytes.end());
  fixture.machine.memory.bytes = bytes[bytes.size() / 2];

  const SearchResult expected = fixture.search(ranks, all, false);
  ASSERT_GT(expected.too_large, 10);
  EXPECT_TRUE(
      std::is_sorted(expected.best.begin(), expected.best.end(),
                     [](const auto& a, const auto& b) { return a.seconds() < b.seconds(); }));
  expect_bounds(fixture, expected.best);
  // None that fits is lost by a bound of memory or time.
  const SearchResult pruned = fixture.search(ranks, all);
  expect_equal(pruned.best, expected.best, expected.best.size());
  EXPECT_EQ(pruned.too_large, expected.too_large);
  // Layouts that fit into a larger memory keep their places.
  std::vector<FoundLayout> fitting;
  for (const FoundLayout& layout : large.best)
    if (layout.bytes <= fixture.machine.memory.bytes) fitting.push_back(layout);
  std::vector<FoundLayout> on_device;
  for (const FoundLayout& layout : pruned.best)
    if (!layout.choice.offload.any()) on_device.push_back(layout);
  expect_equal(on_device, fitting, fitting.size());

  const SearchResult first = fixture.search(ranks, 3);
  expect_equal(first.best, expected.best, 3);
  EXPECT_LT(first.predicted, expected.predicted / 2);
}

TEST(Search, OfATransformerIsThatOfAllPredictions) {
  SearchFixture fixture = small_gpt();
  fixture.set("parallel.recompute", "every 2");
  compare_with_all(fixture, 4);
}

TEST(Search, OfThreeKindsOfParallelismIsThatOfAllPredictions) {
  SearchFixture fixture = small_gpt();
  fixture.set("model.layers", "4");
  // Weights and slots need most of the memory.
  fixture.set("model.width", "4096");
  fixture.set("model.heads", "32");
  fixture.set("parallel.tensor", "2");
  fixture.set("parallel.pipeline", "2");
  compare_with_all(fixture, 8);
}

TEST(Search, OfAnImageModelIsThatOfAllPredictions) {
  SearchFixture fixture = small_resnet();
  fixture.set("parallel.recompute", "none");
  compare_with_all(fixture, 4);
}

TEST(Search, KeysOfTheCommandLineAreKept) {
  SearchFixture fixture = small_gpt();
  fixture.set("parallel.tensor", "2");
  fixture.set("parallel.shard", "optimizer");
  const SearchResult result = fixture.search(4, all);
  ASSERT_FALSE(result.best.empty());
  for (const FoundLayout& found : result.best) {
    EXPECT_EQ(found.choice.tensor, 2);
    EXPECT_EQ(found.choice.shard, parallel::ShardKind::optimizer);
    EXPECT_EQ(found.deck.parallel.tensor, 2);
    EXPECT_EQ(found.layout.ranks(), 4);
    EXPECT_EQ(found.layout.global, 8);
  }
}

TEST(Search, RefusalsAreThoseOfTheDeck) {
  const SearchResult result = small_gpt().search(8, 1);
  // Eight tensor ranks cannot share four heads.
  EXPECT_THAT(result.refused, Contains(AllOf(Field(&RejectedLayouts::reason, HasSubstr("heads")),
                                             Field(&RejectedLayouts::layouts, Gt(0)))));
  std::int64_t refused = 0;
  for (const RejectedLayouts& reason : result.refused) refused += reason.layouts;
  EXPECT_GT(result.layouts, refused);
}

TEST(Search, OffloadsOnlyIfNothingElseFits) {
  SearchFixture fixture = small_gpt();
  const SearchResult roomy = fixture.search(1, all);
  std::int64_t least = roomy.best.front().bytes;
  for (const FoundLayout& found : roomy.best) {
    EXPECT_FALSE(found.choice.offload.any());
    least = std::min(least, found.bytes);
  }
  fixture.machine.memory.bytes = least - 1;
  const SearchResult tight = fixture.search(1, all);
  ASSERT_FALSE(tight.best.empty());
  for (const FoundLayout& found : tight.best) {
    EXPECT_TRUE(found.choice.offload.any());
    EXPECT_GT(found.copy_seconds, 0);
    EXPECT_LT(found.bytes, least);
  }
}

TEST(Search, NamesTheSmallestLayoutIfNoneFits) {
  SearchFixture fixture = small_gpt();
  fixture.machine.memory.bytes = 1000;
  const SearchResult result = fixture.search(2, 10);
  EXPECT_TRUE(result.best.empty());
  ASSERT_TRUE(result.smallest.has_value());
  EXPECT_GT(result.smallest_bytes, 1000);
  // With as much memory as it needs the layout fits.
  fixture.machine.memory.bytes = result.smallest_bytes;
  EXPECT_FALSE(fixture.search(2, 10).best.empty());
}

TEST(Search, OtherKeysOfTheDeckLimitTheSpace) {
  SearchFixture fixture = small_resnet();
  fixture.set("parallel.sync_batch_norm", "2");
  fixture.set("parallel.recompute", "none");
  const SearchResult result = fixture.search(4, all);
  ASSERT_FALSE(result.best.empty());
  for (const FoundLayout& found : result.best) {
    EXPECT_EQ(found.choice.data % 2, 0);
    EXPECT_EQ(found.layout.batch_norm_ranks, 2);
  }
  expect_bounds(fixture, result.best);
}

TEST(Search, AMistakeOfTheDeckIsNotALayout) {
  SearchFixture fixture = small_gpt();
  fixture.set("model.heads", "5");
  EXPECT_THROW(fixture.search(2, 10), InputError);
  fixture = small_gpt();
  fixture.set("parallel.pipeline_schedule", "gpipe");
  EXPECT_THROW(fixture.search(2, 10), InputError);
}

// The bound is reached by stages of w, w (1 - 1/m), w (1 - 1/m)^2 ..., and by no division is it
// exceeded.
TEST(Search, TheBoundOfAPipelineIsTheLeastOfAllDivisions) {
  const auto seconds = [](const std::vector<double>& stages, double micro_batches) {
    double most = 0, before = 0;
    for (const double stage : stages) {
      most = std::max(most, micro_batches * stage + before);
      before += stage;
    }
    return most;
  };
  EXPECT_DOUBLE_EQ(least_pipeline_seconds(3, 1, 1, 5), 15);
  EXPECT_DOUBLE_EQ(least_pipeline_seconds(2, 4, 1, 1), 2);
  EXPECT_DOUBLE_EQ(least_pipeline_seconds(2, 4, 2, 8), 4);
  EXPECT_DOUBLE_EQ(least_pipeline_seconds(1 + 0.75 + 0.5625, 3, 1, 4),
                   seconds({1, 0.75, 0.5625}, 4));
  for (const double first : {0.5, 0.9, 1.0, 1.1, 2.0})
    for (const double second : {0.5, 0.9, 1.0, 1.1})
      EXPECT_GE(seconds({first, second, 3.1 - first - second}, 4) * (1 + 1e-12),
                least_pipeline_seconds(3.1, 3, 1, 4));
}

}  // namespace
}  // namespace trireme::plan
