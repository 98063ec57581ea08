// SPDX-License-Identifier: Apache-2.0
//
// Differences between the deck of a checkpoint and the deck of its restart.
#include <map>

#include "support.hpp"

namespace trireme::deck {
namespace {

TEST(DeckDifferences, NoneBetweenEqualDecks) {
  EXPECT_TRUE(differences(with({}), with({{"run.seed", "1"}})).empty());
}

TEST(DeckDifferences, NameKeyAndBothValues) {
  const auto found =
      differences(with({}), with({{"schedule.rate", "0.05"}, {"batch.micro", "32"}}));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].key, "batch.micro");
  EXPECT_EQ(found[1].key, "schedule.rate");
  EXPECT_EQ(found[1].before, "0.1");
  EXPECT_EQ(found[1].after, "0.05");
  EXPECT_FALSE(found[1].forbidden);
}

// docs/reference/numerics.md: model, seed, shuffle, optimizer.kind and sync must not change; all
// other keys may.
TEST(DeckDifferences, ForbiddenChangesAreMarked) {
  for (const Override& change : std::vector<Override>{{"model.width", "32"},
                                                      {"model.depth", "14"},
                                                      {"model.drop_path", "0.1"},
                                                      {"run.seed", "2"},
                                                      {"data.shuffle", "none"},
                                                      {"parallel.sync", "delayed"},
                                                      {"parallel.sync", "every 4 steps"}}) {
    const auto found = differences(with({}), with({change}));
    ASSERT_EQ(found.size(), 1u) << change.key;
    EXPECT_EQ(found[0].key, change.key);
    EXPECT_TRUE(found[0].forbidden) << change.key;
  }
  bool kind_found = false;
  for (const Difference& difference : differences(with({}), with({{"optimizer.kind", "adamw"}}))) {
    EXPECT_EQ(difference.forbidden, difference.key == "optimizer.kind") << difference.key;
    kind_found |= difference.forbidden;
  }
  EXPECT_TRUE(kind_found);
  for (const Override& change : std::vector<Override>{{"run.stop", "20 epochs"},
                                                      {"data.train", "elsewhere"},
                                                      {"optimizer.clip_value", "1"},
                                                      {"optimizer.groups", "[{ match = \"*\" }]"},
                                                      {"optimizer.weight_decay", "0.1"}})
    for (const Difference& difference : differences(with({}), with({change})))
      EXPECT_FALSE(difference.forbidden) << difference.key;
}

TEST(DeckDifferences, AugmentationMayChange) {
  const auto found = differences(
      with({{"data.augment.mixup", "0.2"}}),
      with({{"data.augment.cutmix", "1"}, {"data.augment.erase", "{ probability = 0.25 }"}}));
  ASSERT_EQ(found.size(), 3u);
  std::map<std::string, std::pair<std::string, std::string>> values;
  for (const Difference& difference : found) {
    EXPECT_FALSE(difference.forbidden) << difference.key;
    values[difference.key] = {difference.before, difference.after};
  }
  EXPECT_EQ(values["data.augment.mixup"], (std::pair<std::string, std::string>("0.2", "0.0")));
  EXPECT_EQ(values["data.augment.cutmix"], (std::pair<std::string, std::string>("0.0", "1.0")));
  EXPECT_EQ(values["data.augment.erase"].second,
            "{ probability = 0.25, scale = [0.02, 0.33], ratio = [0.3, 3.3] }");
}

TEST(DeckDifferences, TheTileOfTheHeadMayChange) {
  const auto found =
      differences(parse(minimal_gpt_deck, "deck.toml", {}),
                  parse(minimal_gpt_deck, "deck.toml", {{"model.head_tile_mb", "64"}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].key, "model.head_tile_mb");
  EXPECT_FALSE(found[0].forbidden);
}

TEST(DeckDifferences, BaseOfPositionsAndEpsilonOfNormsAreFixed) {
  const auto llama = [](const std::vector<Override>& more) {
    std::vector<Override> overrides = {{"model.positions", "rope"}, {"model.norm", "rms"}};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse(minimal_gpt_deck, "deck.toml", overrides);
  };
  // A deck that says the defaults equals one that leaves them out, as older decks do.
  EXPECT_TRUE(
      differences(llama({}), llama({{"model.rope_base", "10000"}, {"model.norm_epsilon", "1e-5"}}))
          .empty());
  for (const Override& change :
       {Override{"model.rope_base", "500000"}, Override{"model.norm_epsilon", "1e-6"}}) {
    const auto found = differences(llama({}), llama({change}));
    ASSERT_EQ(found.size(), 1u);
    EXPECT_EQ(found[0].key, change.key);
    EXPECT_TRUE(found[0].forbidden);
  }
}

TEST(DeckDifferences, TheOuterMomentumMayChangeButNotHowOftenRanksAreAveraged) {
  const auto found =
      differences(with({{"parallel.sync", "every 4 steps"}}),
                  with({{"parallel.sync", "every 8 steps"}, {"parallel.outer_momentum", "0.5"}}));
  ASSERT_EQ(found.size(), 2u);
  for (const Difference& difference : found)
    EXPECT_EQ(difference.forbidden, difference.key == "parallel.sync") << difference.key;
}

// A vocabulary that the data define equals the same one written out: the data must not change
// either.
TEST(DeckDifferences, AVocabularyLeftToTheDataIsNoChange) {
  const auto gpt = [](const std::vector<Override>& overrides) {
    return parse(minimal_gpt_deck, "deck.toml", overrides);
  };
  EXPECT_TRUE(differences(gpt({}), gpt({{"model.vocabulary", "256"}})).empty());
  EXPECT_TRUE(differences(gpt({{"model.vocabulary", "256"}}), gpt({})).empty());
  const auto found =
      differences(gpt({{"model.vocabulary", "256"}}), gpt({{"model.vocabulary", "300"}}));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].forbidden);
}

// A restart may use any other layout.
TEST(DeckDifferences, TheLayoutMayChange) {
  const Deck before = parse(minimal_gpt_deck, "deck.toml");
  const Deck after = parse(minimal_gpt_deck, "deck.toml",
                           {{"parallel.tensor", "2"},
                            {"parallel.pipeline", "2"},
                            {"parallel.shard", "parameters"},
                            {"parallel.sequence", "true"},
                            {"parallel.recompute", "all"},
                            {"parallel.pipeline_schedule", "gpipe"},
                            {"monitor.trace", "1..2"}});
  const auto found = differences(before, after);
  EXPECT_EQ(found.size(), 7u);
  for (const Difference& difference : found) EXPECT_FALSE(difference.forbidden) << difference.key;
}

}  // namespace
}  // namespace trireme::deck
