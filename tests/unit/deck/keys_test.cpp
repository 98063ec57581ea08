// SPDX-License-Identifier: Apache-2.0
//
// The description of all keys, for `trireme check --keys`.
#include <algorithm>
#include <set>
#include <sstream>

#include <fmt/format.h>

#include "support.hpp"
#include "support/models.hpp"

namespace trireme::deck {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::IsSupersetOf;
using testing::Not;

const KeyInfo& key_of(const std::vector<KeyInfo>& all, const std::string& path) {
  const auto found = std::find_if(all.begin(), all.end(),
                                  [&](const KeyInfo& key) { return path_of(key) == path; });
  EXPECT_NE(found, all.end()) << path;
  return *found;
}

const std::string map_deck =
    "[run]\nname = \"test\"\n[model]\nkind = \"chain\"\nblocks = [{ kind = \"conv\", channels = 2, "
    "kernel = 3 }]\n[data]\ntrain = \"somewhere\"\n[data.hdf5]\ninput = \"/x\"\ntarget = \"/y\"\n"
    "layout = \"hw\"\n[target]\nkind = \"pixels\"\nclasses = 2\n";

/// Returns decks that together have every kind and every condition of the keys.
std::vector<Deck> decks_of_all_kinds() {
  const auto with = [](const std::string& text, const std::vector<Override>& overrides) {
    return parse(text, "deck.toml", overrides);
  };
  std::vector<Deck> decks{
      with(minimal_deck, {{"optimizer.kind", "lars"}, {"data.shuffle", "blocks"}}),
      with(minimal_mlp_deck, {{"optimizer.kind", "adamw"}, {"precision.compute", "float16"}}),
      with(minimal_gpt_deck, {{"schedule.kind", "cosine"},
                              {"schedule.scaling", "linear"},
                              {"optimizer.weight_decay", "0.1"},
                              {"optimizer.groups", "[{ match = \"*\", rate_ratio = 2 }]"},
                              {"model.vocabulary", "256"},
                              {"model.head_tile_mb", "64"},
                              {"model.positions", "rope"},
                              {"debug.fused_softmax", "true"}}),
      with(minimal_deck, {{"data.validation", "a"},
                          {"data.test", "b"},
                          {"data.augment.normalize", "{ mean = [0.5], std = [0.5] }"},
                          {"data.augment.random_resized_crop", "{ size = 32 }"},
                          {"data.augment.evaluate", "{ resize = 36, crop = 32 }"},
                          {"data.augment.color_jitter", "{ hue = 0.1 }"},
                          {"data.augment.rand_augment", "{ count = 2 }"},
                          {"data.augment.erase", "{}"},
                          {"data.augment.mixup", "0.2"},
                          {"data.augment.cutmix", "1"},
                          {"monitor.machine", "h100"},
                          {"monitor.prometheus", "run.prom"},
                          {"debug.fault", "kill rank 0 step 1"},
                          {"debug.device", "emulated"},
                          {"debug.joined_norms", "true"}}),
      with(minimal_deck, {{"schedule.kind", "step"}, {"schedule.milestones", "[\"1 epoch\"]"}}),
      with(minimal_deck, {{"schedule.kind", "exponential"}, {"schedule.gamma", "0.9"}}),
      with(minimal_deck, {{"schedule.kind", "polynomial"}, {"schedule.warmup", "1 epoch"}}),
      with(minimal_deck, {{"schedule.kind", "restarts"}, {"schedule.period", "1 epoch"}}),
      with(minimal_deck, {{"schedule.kind", "one-cycle"}}),
      with(minimal_deck, {{"optimizer.kind", "muon"}}),
      with(minimal_deck, {{"data.hdf5.input", "/x"},
                          {"data.hdf5.target", "/y"},
                          {"data.hdf5.layout", "hw"},
                          {"data.hdf5.fill", "0.5"},
                          {"target.kind", "values"},
                          {"target.normalize", "{ mean = [0.5], std = [2] }"},
                          {"loss.kind", "huber"}}),
      with(map_deck, {{"target.ignore", "255"}, {"loss.class_weights", "[1, 2]"}}),
      with(minimal_deck, {{"batch.ramp", "[[\"0 epochs\", 64]]"}}),
      with(minimal_deck, {{"schedule.kind", "plateau"}, {"data.validation", "a"}}),
  };
  for (const test::SmallModel& small : test::small_models()) {
    decks.push_back(with(takes_tokens(small.options) ? minimal_gpt_deck : minimal_deck, {}));
    decks.back().model = small.options;
  }
  return decks;
}

TEST(DeckKeys, NameEveryKeyThatADeckCanWrite) {
  std::set<std::string> known;
  for (const KeyInfo& key : keys()) known.insert(path_of(key));
  std::set<std::string> written;
  for (const Deck& deck : decks_of_all_kinds())
    for (const std::string& path : written_keys(deck)) {
      written.insert(path);
      EXPECT_TRUE(known.count(path)) << path;
    }
  for (const KeyInfo& key : keys()) EXPECT_TRUE(written.count(path_of(key))) << path_of(key);
}

TEST(DeckKeys, AMeaningIsOneShortSentence) {
  for (const KeyInfo& key : keys()) {
    std::istringstream stream(key.meaning);
    int words = 0;
    for (std::string word; stream >> word;) ++words;
    EXPECT_TRUE(words >= 3 && words <= 25) << path_of(key) << ": " << words << " words";
    EXPECT_THAT(key.meaning, EndsWith(".")) << path_of(key);
    EXPECT_THAT(key.meaning, Not(HasSubstr(". "))) << path_of(key);
  }
}

// A meaning begins with a verb, or with the condition under which the key has an effect.
TEST(DeckKeys, AMeaningThatBeginsWithAConditionHasAnOwner) {
  int count = 0;
  for (const KeyInfo& key : keys()) {
    const bool has_condition =
        (key.meaning[0] >= 'a' && key.meaning[0] <= 'z') || key.meaning.starts_with("Images:");
    EXPECT_TRUE(!has_condition || !key.owner.empty()) << path_of(key) << ": " << key.meaning;
    count += has_condition;
  }
  EXPECT_GT(count, 20);
}

TEST(DeckKeys, HaveAType) {
  for (const KeyInfo& key : keys()) EXPECT_FALSE(key.type.empty()) << path_of(key);
}

/// Returns the smallest deck of the kind that the key belongs to.
std::string smallest_deck(const KeyInfo& key) {
  if (key.owner.starts_with("target.kind = \"pixels\"")) return map_deck;
  if (key.table != "model" || key.owner.empty()) return minimal_deck;
  if (key.owner.starts_with("positions")) return minimal_gpt_deck;
  if (key.owner.starts_with("kind = \"resnet\"")) return minimal_deck;
  if (key.owner.starts_with("kind = \"mlp\"")) return minimal_mlp_deck;
  // The other families have a default for each key.
  return "[run]\nname = \"test\"\n[data]\ntrain = \"somewhere\"\n[model]\n" +
         key.owner.substr(0, key.owner.find(" or ")) + "\n";
}

/// Returns a schedule to which the key belongs.
std::vector<Override> schedule_of(const KeyInfo& key) {
  if (key.key == "warmup") return {};
  if (key.key == "start_ratio") return {{"schedule.warmup", "1 epoch"}};
  if (key.key == "every") return {{"schedule.kind", "exponential"}, {"schedule.gamma", "0.9"}};
  const std::size_t begin = key.owner.find('"') + 1;
  const std::string kind = key.owner.substr(begin, key.owner.find('"', begin) - begin);
  std::vector<Override> choice{{"schedule.kind", kind}};
  if (kind == "step" && key.key != "milestones") choice.push_back({"schedule.every", "1 epoch"});
  if (kind == "restarts") choice.push_back({"schedule.period", "1 epoch"});
  if (kind == "plateau") choice.push_back({"data.validation", "somewhere"});
  return choice;
}

/// Returns the choice that makes a key of another table than [model] exist.
std::vector<Override> owner_choice(const KeyInfo& key) {
  if (key.owner.starts_with("precision.compute")) return {{"precision.compute", "float16"}};
  if (key.owner.starts_with("positions")) return {{"model.positions", "rope"}};
  if (key.owner.starts_with("shuffle")) return {{"data.shuffle", "blocks"}};
  if (key.owner.starts_with("scaling")) return {{"schedule.scaling", "linear"}};
  if (key.owner.starts_with("weight_decay")) return {{"optimizer.weight_decay", "0.1"}};
  std::vector<Override> arrays = {
      {"data.hdf5.input", "/x"}, {"data.hdf5.target", "/y"}, {"data.hdf5.layout", "hw"}};
  if (key.owner == "a table with input") return arrays;
  if (key.owner == "loss.kind = \"huber\"") {
    arrays.insert(arrays.end(), {{"target.kind", "values"}, {"loss.kind", "huber"}});
    return arrays;
  }
  if (key.owner == "a deck with data.validation") return {{"data.validation", "somewhere"}};
  if (key.table == "schedule" && !key.owner.empty()) return schedule_of(key);
  if (key.table == "optimizer" && !key.owner.empty()) {
    const std::size_t begin = key.owner.find('"') + 1;
    return {{"optimizer.kind", key.owner.substr(begin, key.owner.find('"', begin) - begin)}};
  }
  return {};
}

TEST(DeckKeys, ADefaultIsReadBackAndIsTheDefault) {
  int count = 0;
  for (const KeyInfo& key : keys()) {
    if (key.default_value.empty()) continue;
    std::vector<Override> overrides = owner_choice(key);
    const std::string text = smallest_deck(key);
    const std::string without = write(parse(text, "deck.toml", overrides));
    overrides.push_back({path_of(key), key.default_value});
    ASSERT_EQ(error_of(text, overrides), "") << path_of(key);
    EXPECT_EQ(write(parse(text, "deck.toml", overrides)), without) << path_of(key);
    ++count;
  }
  EXPECT_GT(count, 70);
}

TEST(DeckKeys, EveryDurationInTokensNeedsATokenDataset) {
  int count = 0;
  for (const KeyInfo& key : keys()) {
    if (key.range.find("tokens") == std::string::npos) continue;
    std::vector<Override> overrides = owner_choice(key);
    overrides.push_back({path_of(key), key.type == "list of durations" ? "[\"3k tokens\"]"
                                       : key.type.starts_with("list")
                                           ? "[[\"0 epochs\", 64], [\"3k tokens\", 128]]"
                                           : "3k tokens"});
    const std::string message = error_of(minimal_deck, overrides);
    EXPECT_THAT(message, HasSubstr("\"3000 tokens\": a duration in tokens needs a token dataset"))
        << path_of(key);
    EXPECT_EQ(error_of(minimal_gpt_deck, overrides), "") << path_of(key);
    ++count;
  }
  EXPECT_GT(count, 5);
}

TEST(DeckKeys, AKeyWithTwoFormsIsListedForEachKind) {
  std::vector<std::string> forms;
  for (const KeyInfo& key : keys())
    if (path_of(key) == "model.norm" || path_of(key) == "model.width" ||
        path_of(key) == "schedule.factor")
      forms.push_back(
          fmt::format("{} {}: {}, {}", key.key, key.owner, key.range, key.default_value));
  EXPECT_EQ(forms,
            (std::vector<std::string>{"width kind = \"resnet\": at least 1 and at most 65536, 64",
                                      "width kind = \"vit\": at least 1 and at most 65536, 768",
                                      "width kind = \"gpt\": at least 1 and at most 65536, 768",
                                      "norm kind = \"resnet\": \"batch\", \"group\", \"batch\"",
                                      "norm kind = \"gpt\": \"layer\", \"rms\", \"layer\"",
                                      "factor kind = \"restarts\": at least 1 and at most 100, 1.0",
                                      "factor kind = \"plateau\": more than 0 and below 1, 0.1"}));
  std::set<std::string> paths;
  for (const KeyInfo& key : keys()) paths.insert(path_of(key));
  EXPECT_EQ(paths.size() + 7, keys().size());
  for (const KeyInfo& key : keys())
    EXPECT_TRUE(!key.owner.starts_with("kind = ") || paths.contains(key.table + ".kind"))
        << path_of(key) << ": a kind of another table";
}

TEST(DeckKeys, RequiredKeysAreThoseThatADeckCannotLeaveOut) {
  std::set<std::string> required;
  for (const KeyInfo& key : keys())
    if (key.required) required.insert(path_of(key));
  EXPECT_EQ(required,
            (std::set<std::string>{"run.name", "data.train", "model.blocks", "model.depth",
                                   "model.widths", "schedule.period", "data.hdf5.target",
                                   "data.hdf5.layout", "target.classes"}));
}

TEST(DeckKeys, RestartPoliciesAgreeWithDifferences) {
  const std::vector<KeyInfo> all = keys();
  const std::vector<Deck> decks = decks_of_all_kinds();
  std::set<std::string> fixed;
  for (const Deck& before : decks)
    for (const Deck& after : decks)
      for (const Difference& difference : differences(before, after)) {
        EXPECT_EQ(key_of(all, difference.key).fixed_at_restart, difference.forbidden)
            << difference.key;
        if (difference.forbidden) fixed.insert(difference.key);
      }
  EXPECT_THAT(fixed, IsSupersetOf({"model.kind", "optimizer.kind", "data.shuffle"}));
  for (const char* path : {"run.seed", "parallel.sync", "model.rope_base", "model.norm_epsilon"})
    EXPECT_TRUE(key_of(all, path).fixed_at_restart) << path;
}

}  // namespace
}  // namespace trireme::deck
