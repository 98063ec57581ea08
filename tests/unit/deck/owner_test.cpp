// SPDX-License-Identifier: Apache-2.0
//
// Keys without effect: parse() refuses them, write() leaves them out, parse_stored() drops them.
#include <algorithm>
#include <set>
#include <span>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "support.hpp"

namespace trireme::deck {
namespace {

/// A key that has an effect only beside some values of another key.
struct OwnedKey {
  std::string path, value;
  /// Settings beside which the key has no effect.
  std::vector<Override> without;
  /// Settings beside which it has one, each by itself.
  std::vector<Override> with;
  std::string owner;  ///< as the message names it
};

const std::vector<OwnedKey> owned_keys = {
    {"run.graphs",
     "false",
     {{"run.device", "cpu"}},
     {{"run.device", "auto"}, {"run.device", "cuda"}},
     "device = \"auto\" or \"cuda\""},
    {"run.walltime_margin",
     "2 minutes",
     {{"run.walltime", "none"}},
     {{"run.walltime", "auto"}, {"run.walltime", "1 hour"}},
     "walltime = \"auto\" or a time"},
    {"optimizer.decay_all",
     "true",
     {{"optimizer.weight_decay", "0"}},
     {{"optimizer.weight_decay", "1e-4"}},
     "weight_decay > 0"},
    {"schedule.base_batch",
     "128",
     {{"schedule.scaling", "none"}},
     {{"schedule.scaling", "linear"}, {"schedule.scaling", "sqrt"}},
     "scaling = \"linear\" or \"sqrt\""},
    {"evaluate.every",
     "100 steps",
     {},
     {{"data.validation", "somewhere"}},
     "a deck with data.validation"},
    {"health.rollback_after",
     "2",
     {{"health.skip_nonfinite", "false"}},
     {{"health.skip_nonfinite", "true"}},
     "skip_nonfinite = true"},
    {"health.rollbacks",
     "2",
     {{"health.skip_nonfinite", "false"}},
     {{"health.skip_nonfinite", "true"}},
     "skip_nonfinite = true"},
};

std::vector<Override> joined(std::vector<Override> settings, const Override& more) {
  settings.push_back(more);
  return settings;
}

bool is_written(const std::string& path, const Deck& deck) {
  const std::vector<std::string> written = written_keys(deck);
  return std::count(written.begin(), written.end(), path) > 0;
}

TEST(DeckOwners, KeysOfATransformerNeedItsForm) {
  const std::vector<Override> rope = {{"model.positions", "rope"}, {"model.rope_base", "5e5"}};
  for (const std::string& text : {minimal_deck, minimal_mlp_deck, minimal_gpt_deck})
    EXPECT_EQ(error_of(text, {rope[1]}),
              "--set model.rope_base=5e5: belongs to positions = \"rope\"; remove it");
  EXPECT_EQ(error_of(minimal_gpt_deck, rope), "");
  for (const std::string& text : {minimal_deck, minimal_mlp_deck})
    EXPECT_EQ(error_of(text, {{"model.norm_epsilon", "1e-6"}}),
              "--set model.norm_epsilon=1e-6: belongs to kind = \"gpt\"; remove it");
  for (const char* norm : {"layer", "rms"})
    EXPECT_EQ(error_of(minimal_gpt_deck, {{"model.norm", norm}, {"model.norm_epsilon", "1e-6"}}),
              "");
  // A wrong owner is reported alone, and a base that turns nothing or everything is refused.
  EXPECT_EQ(count_lines(error_of(minimal_gpt_deck, {{"model.positions", "ropes"}, rope[1]})), 1);
  for (const char* base : {"0.5", "0", "-10000", "1e13", "inf", "nan"})
    EXPECT_NE(error_of(minimal_gpt_deck, {rope[0], {"model.rope_base", base}}), "") << base;
  for (const char* epsilon : {"0", "1e-13", "0.2", "-1e-5", "nan"})
    EXPECT_NE(error_of(minimal_gpt_deck, {{"model.norm_epsilon", epsilon}}), "") << epsilon;
}

TEST(DeckOwners, AKeyWithoutEffectIsRefused) {
  for (const OwnedKey& key : owned_keys)
    EXPECT_EQ(error_of(minimal_deck, joined(key.without, {key.path, key.value})),
              fmt::format("--set {}={}: belongs to {}; remove it", key.path, key.value, key.owner));
}

TEST(DeckOwners, AKeyIsTakenAndWrittenWhereItHasAnEffect) {
  for (const OwnedKey& key : owned_keys)
    for (const Override& choice : key.with) {
      const std::vector<Override> settings = {choice, {key.path, key.value}};
      ASSERT_EQ(error_of(minimal_deck, settings), "") << key.path;
      const Deck deck = parse(minimal_deck, "deck.toml", settings);
      EXPECT_TRUE(is_written(key.path, deck)) << key.path;
      EXPECT_NE(write(deck), write(parse(minimal_deck, "deck.toml", {choice}))) << key.path;
    }
}

/// Returns every choice of every key that is a word, true or false, 0 or a positive number, or a
/// folder. They include all choices that decide whether another key has an effect.
std::vector<Override> all_choices() {
  std::vector<Override> choices;
  for (const KeyInfo& key : keys()) {
    const std::string path = path_of(key);
    if (key.type == "true or false")
      choices.insert(choices.end(), {{path, "true"}, {path, "false"}});
    else if (key.type == "number")
      choices.insert(choices.end(), {{path, "0"}, {path, "0.5"}});
    else if (path == "data.validation" || path == "data.test")
      choices.push_back({path, "somewhere"});
    else if (key.type.find("word") != std::string::npos)
      for (std::size_t begin = key.range.find('"'); begin != std::string::npos;) {
        const std::size_t end = key.range.find('"', begin + 1);
        choices.push_back({path, key.range.substr(begin, end + 1 - begin)});
        begin = key.range.find('"', end + 1);
      }
  }
  return choices;
}

// The resolved deck must be a valid deck, and must not hide a key that a user may set.
TEST(DeckOwners, BesideEveryChoiceTheKeysLeftOutAreThoseRefused) {
  const std::vector<KeyInfo> all = keys();
  std::set<std::string> refused_keys;
  int num_decks = 0;
  for (const std::string& text : {minimal_deck, minimal_mlp_deck, minimal_gpt_deck})
    for (const Override& choice : all_choices()) {
      // Some choices contradict the defaults of other keys ("interleaved" with one stage).
      if (!error_of(text, {choice}).empty()) continue;
      const Deck deck = parse(text, "deck.toml", {choice});
      EXPECT_EQ(error_of(write(deck)), "") << choice.key << " = " << *choice.value;
      const std::vector<std::string> written = written_keys(deck);
      // Of the keys of an owner, with their defaults: those written, and those left out.
      std::vector<Override> with_effect{choice}, without{choice};
      for (const KeyInfo& key : all) {
        const std::string path = path_of(key);
        if (key.owner.empty() || key.default_value.empty() || path == choice.key) continue;
        const bool left_out = std::count(written.begin(), written.end(), path) == 0;
        (left_out ? without : with_effect).push_back({path, key.default_value});
      }
      EXPECT_THAT(error_of(text, with_effect), testing::Not(testing::HasSubstr("belongs to")))
          << choice.key << " = " << *choice.value;
      // A key whose owner is refused is reported without it only.
      const std::string error = error_of(text, without);
      for (const Override& key : std::span(without).subspan(1)) {
        const std::string message = fmt::format("--set {}={}: belongs to", key.key, *key.value);
        if (error.find(message) == std::string::npos) {
          EXPECT_THAT(error_of(text, {choice, key}), testing::HasSubstr(message))
              << choice.key << " = " << *choice.value;
        }
        refused_keys.insert(key.key);
      }
      ++num_decks;
    }
  EXPECT_GT(num_decks, 100);
  for (const OwnedKey& key : owned_keys) EXPECT_TRUE(refused_keys.count(key.path)) << key.path;
}

TEST(DeckOwners, AStoredDeckLosesItsKeysWithoutEffect) {
  // Earlier versions wrote every key with its default.
  std::string old = minimal_deck + "[schedule]\nbase_batch = 128\nscaling = \"none\"\n";
  old += "[evaluate]\nevery = \"1 epoch\"\n";
  EXPECT_NE(error_of(old), "");
  const StoredDeck stored = parse_stored(old, "old.h5:deck");
  EXPECT_EQ(stored.dropped_keys,
            (std::vector<std::string>{"schedule.base_batch", "evaluate.every"}));
  const Deck without = parse(minimal_deck, "deck.toml");
  EXPECT_EQ(write(stored.deck), write(without));
  EXPECT_TRUE(differences(stored.deck, without).empty());
  EXPECT_EQ(stored.deck.schedule.base_batch, without.schedule.base_batch);
  EXPECT_TRUE(parse_stored(write(without), "new.h5:deck").dropped_keys.empty());
}

TEST(DeckOwners, AStoredDeckWithAMistakeIsRefused) {
  const auto stored_error = [](const std::string& text) -> std::string {
    try {
      parse_stored(text, "old.h5:deck");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(stored_error(minimal_deck + "[schedule]\nbase_batch = 128\nrate = 0\n"),
            "old.h5:deck:9:8: [schedule] rate: 0 is out of range; must be more than 0");
  EXPECT_NE(stored_error(minimal_deck + "[batch]\nglobal = 500\n"), "");
}

}  // namespace
}  // namespace trireme::deck
