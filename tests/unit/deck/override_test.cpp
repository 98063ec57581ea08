// SPDX-License-Identifier: Apache-2.0
//
// Overrides (--set): parsing of values, precedence, and mistakes.
#include "support.hpp"
#include "trireme/base/utf8.hpp"

namespace trireme::deck {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

TEST(DeckOverride, ValuesAreTomlOrElseStrings) {
  EXPECT_EQ(with({{"optimizer.momentum", "0.5"}}).optimizer.momentum, 0.5);
  EXPECT_EQ(with({{"run.stop", "3 epochs"}}).run.stop, (Duration{3, Duration::Unit::epochs}));
  EXPECT_EQ(with({{"run.stop", "\"3 epochs\""}}).run.stop, (Duration{3, Duration::Unit::epochs}));
  EXPECT_EQ(with({{"run.name", "other"}}).run.name, "other");
  EXPECT_EQ(with({{"run.name", "other"}}).run.folder, "runs/other");
  EXPECT_EQ(with({{"run.name", "2024"}}).run.name, "2024");
  EXPECT_EQ(with({{"data.train", "\"true\""}}).data.train, "true");
  EXPECT_EQ(with({{"data.train", "2024-01-01"}}).data.train, "2024-01-01");
  EXPECT_EQ(with({{"run.name", "99999999999999999999"}}).run.name, "99999999999999999999");
  EXPECT_EQ(with({{"data.train", "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80"}}).data.train,
            "\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80");
  EXPECT_TRUE(with({{"data.augment.flip", "true"}}).data.augment.flip);
  EXPECT_EQ(with({{"data.augment.normalize", "{ mean = [0.5], std = [2] }"}}).data.augment.std,
            std::vector<double>{2});
  EXPECT_EQ(with({{"optimizer", "{ kind = \"lars\", momentum = 0.8 }"}}).optimizer.momentum, 0.8);
}

TEST(DeckOverride, TheLastOneHolds) {
  EXPECT_EQ(with({{"run.seed", "2"}, {"run.seed", "3"}}).run.seed, 3u);
  EXPECT_EQ(with({{"run.seed", "many"}, {"run.seed", "3"}}).run.seed, 3u);
}

TEST(DeckOverride, MistakesNameTheArgument) {
  EXPECT_EQ(error_of(minimal_deck, {{"optimizer.momentum", "abc"}}),
            "--set optimizer.momentum=abc: must be a number, not a string (\"abc\")");
  EXPECT_EQ(error_of(minimal_deck, {{"optimizer.momentun", "0.9"}}),
            "--set optimizer.momentun=0.9: unknown key, did you mean \"momentum\"?");
  EXPECT_EQ(error_of(minimal_deck, {{"optimiser.momentum", "0.9"}}).substr(0, 42),
            "--set optimiser.momentum=0.9: [optimiser]:");
  EXPECT_EQ(error_of(minimal_deck, {{"optimizer.kind", "adamv"}}).substr(0, 29),
            "--set optimizer.kind=adamv: \"");
  EXPECT_EQ(error_of(minimal_deck, {{"optimizer", "{ kind = \"sgd\", rat = 1 }"}}).substr(0, 55),
            "--set optimizer={ kind = \"sgd\", rat = 1 }: [optimizer] ");
  EXPECT_EQ(error_of(minimal_deck, {{"momentum", "0.9"}}),
            "--set momentum=0.9: unknown table or key; momentum is a key of [optimizer]");
  EXPECT_THAT(error_of(minimal_deck, {{"optimizer.", "0.9"}}),
              HasSubstr("--set optimizer.=0.9: a key is written table.key"));
  EXPECT_THAT(error_of(minimal_deck, {{"run.name.x", "0.9"}}),
              HasSubstr("--set run.name.x=0.9: name is not a table"));
  EXPECT_THAT(error_of(minimal_deck, {{"batch.global", "500"}}),
              HasSubstr("--set batch.global=500: batch.global = 500 is not a multiple"));
}

TEST(DeckOverride, RemovedKeysAreAsIfTheDeckDidNotHaveThem) {
  const auto removed = [](const char* key) { return Override{key, std::nullopt}; };
  const std::string warm =
      minimal_deck + "[optimizer]\nmomentum = 0.8\n[schedule]\nwarmup = \"2 steps\"\n";
  EXPECT_FALSE(parse(warm, "deck.toml", {removed("schedule.warmup")}).schedule.warmup);
  // A schedule of another kind, on the command line alone.
  const Override cycle{"schedule.kind", "one-cycle"};
  const std::string refused = error_of(warm, {cycle});
  EXPECT_THAT(refused, HasSubstr("remove it, or give --unset schedule.warmup"));
  EXPECT_THAT(refused, HasSubstr("remove it, or give --unset optimizer.momentum"));
  EXPECT_EQ(error_of(warm, {removed("schedule.warmup"), removed("optimizer.momentum"), cycle}), "");
  // A part of a table, a table, and a key that a deck must have.
  const std::string augmented =
      minimal_deck + "[data.augment]\nrandom_resized_crop = { size = 8, scale = [0.5, 1] }\n";
  const Deck part =
      parse(augmented, "deck.toml", {removed("data.augment.random_resized_crop.scale")});
  EXPECT_EQ(part.data.augment.random_resized_crop.size, 8);
  EXPECT_EQ(part.data.augment.random_resized_crop.scale[0], 0.08);
  EXPECT_EQ(error_of(augmented, {removed("data.augment")}), "");
  EXPECT_THAT(error_of(minimal_deck, {removed("run.name")}), HasSubstr("[run] name: missing"));
  // A removed key can be set anew, but must have been there.
  EXPECT_EQ(error_of(minimal_deck, {removed("run.name"), {"run.name", "other"}}), "");
  EXPECT_EQ(error_of(minimal_deck, {removed("schedule.warmpu")}),
            "--unset schedule.warmpu: the deck does not have this key");
  EXPECT_EQ(error_of(warm, {removed("schedule.warmpu")}),
            "--unset schedule.warmpu: the deck does not have this key, did you mean "
            "schedule.warmup?");
  EXPECT_EQ(error_of(warm, {removed("optimzer")}),
            "--unset optimzer: the deck does not have this key, did you mean optimizer?");
  EXPECT_EQ(error_of(minimal_deck, {removed("run..name")}).substr(0, 32),
            "--unset run..name: a key is writ");
}

TEST(DeckOverride, BlanksAroundTheEqualsSignAreRefusedWithTheRightForm) {
  EXPECT_EQ(error_of(minimal_deck, {{"optimizer.rate ", " 0.2"}}),
            "--set optimizer.rate = 0.2: a key has no blanks; write --set "
            "optimizer.rate=0.2");
  EXPECT_EQ(error_of(minimal_deck, {{" run.stop", "3 epochs"}}),
            "--set  run.stop=3 epochs: a key has no blanks; write --set "
            "'run.stop=3 epochs'");
  EXPECT_EQ(error_of(minimal_deck, {{"run.name ", std::nullopt}}),
            "--unset run.name : a key has no blanks; write --unset run.name");
  // In front of the value a blank is TOML's own.
  EXPECT_EQ(parse(minimal_deck, "deck.toml", {{"optimizer.momentum", " 0.5"}}).optimizer.momentum,
            0.5);
}

TEST(DeckOverride, APartOfATableOfTheDeckIsNamed) {
  const std::string deck =
      std::string(minimal_deck) + "[data.augment]\nevaluate = { resize = 20, crop = 16 }\n";
  EXPECT_EQ(error_of(deck, {{"data.augment.evaluate.crop", "24"}}).substr(0, 71),
            "--set data.augment.evaluate.crop=24: [data.augment] evaluate: crop = 24");
  const Deck changed = parse(deck, "deck.toml", {{"data.augment.evaluate.crop", "8"}});
  EXPECT_EQ(with_location(changed, "data.augment.evaluate: is wrong"),
            "--set data.augment.evaluate.crop=8: data.augment.evaluate: is wrong");
  // A mistake of the deck itself keeps its line.
  EXPECT_EQ(error_of(std::string(minimal_deck) + "[data.augment]\nflip = 3\n",
                     {{"data.augment.random_crop", "2"}})
                .substr(0, 10),
            "deck.toml:");
}

TEST(DeckOverride, TablesAndListsThatAreNotToml) {
  for (const char* value : {"{ resize = 20, crop }", "[1, 2", "{ = }"}) {
    const std::string error = error_of(minimal_deck, {{"data.augment.evaluate", value}});
    EXPECT_THAT(error,
                StartsWith(fmt::format("--set data.augment.evaluate={}: not valid TOML: ", value)));
  }
}

TEST(DeckOverride, NoTextFromValuesOfOtherTypes) {
  EXPECT_EQ(error_of(minimal_deck, {{"run.folder", "true"}}),
            "--set run.folder=true: must be a string, not a boolean (true)");
  EXPECT_EQ(error_of(minimal_deck, {{"run.folder", "[1,2]"}}),
            "--set run.folder=[1,2]: must be a string, not an array");
  EXPECT_EQ(error_of(minimal_deck, {{"run.folder", "{a=1}"}}),
            "--set run.folder={a=1}: must be a string, not a table");
}

TEST(DeckOverride, NumbersTooLargeAreCalledSo) {
  EXPECT_EQ(
      error_of(minimal_deck, {{"schedule.rate", "1e400"}}),
      "--set schedule.rate=1e400: 1e400 is too large; must be more than 0 and at most 1.7e308");
  EXPECT_EQ(error_of(minimal_deck, {{"run.seed", "99999999999999999999"}}),
            "--set run.seed=99999999999999999999: 99999999999999999999 is too large; must be at "
            "least 0 and at most 4611686018427387904");
  EXPECT_THAT(error_of(minimal_deck, {{"model.depth", "99999999999999999999"}}),
              HasSubstr("is too large"));
  EXPECT_THAT(error_of(minimal_deck, {{"parallel.data", "-99999999999999999999"}}),
              HasSubstr("is too far below 0"));
}

/// The deck says how many samples a step has, or when the rate falls, in one of two ways.
TEST(DeckOverride, ReplacesTheOtherOneOfTwoAlternatives) {
  const std::string ramp = "[[\"0 epochs\", 128], [\"5 epochs\", 512]]",
                    with_global = minimal_deck + "[batch]\nglobal = 256\n",
                    with_ramp = minimal_deck + "[batch]\nramp = " + ramp + "\n",
                    steps = minimal_deck + "[schedule]\nkind = \"step\"\n";
  const auto batch = [](const std::string& deck, const std::vector<Override>& overrides) {
    return parse(deck, "deck.toml", overrides).batch;
  };
  EXPECT_EQ(batch(with_global, {{"batch.ramp", ramp}}).ramp.size(), 2);
  EXPECT_EQ(batch(with_ramp, {{"batch.global", "320"}}).global, 320);
  EXPECT_TRUE(batch(with_ramp, {{"batch.global", "320"}}).ramp.empty());
  // No ramp: the deck's number counts.
  EXPECT_EQ(batch(minimal_deck + "[batch]\nglobal = 320\n", {{"batch.ramp", "[]"}}).global, 320);
  EXPECT_EQ(error_of(minimal_deck, {{"batch.global", "256"}, {"batch.ramp", ramp}}),
            "--set batch.global=256: is replaced by batch.ramp, which is given too; use one of "
            "them");
  EXPECT_EQ(error_of(with_global, {{"batch.ramp", ramp}, {"batch.global", "256"}}),
            "--set batch.global=256: is replaced by batch.ramp, which is given too; use one of "
            "them");
  const optim::ScheduleOptions every = parse(steps + "milestones = [\"3 epochs\"]\n", "deck.toml",
                                             {{"schedule.every", "2 epochs"}})
                                           .schedule,
                               milestones = parse(steps + "every = \"2 epochs\"\n", "deck.toml",
                                                  {{"schedule.milestones", "[\"3 epochs\"]"}})
                                                .schedule;
  EXPECT_TRUE(every.every && every.milestones.empty());
  EXPECT_TRUE(!milestones.every && milestones.milestones.size() == 1);
  EXPECT_EQ(error_of(steps + "milestones = [\"3 epochs\"]\n", {{"schedule.every", "none"}}), "");
}

TEST(DeckOverride, TextsThatAreNotUtf8AreRefused) {
  // A lone continuation byte, an overlong form, half of a UTF-16 pair, a truncated character.
  for (const std::string text : {"\xff", "\xC0\xAF", "\xED\xA0\x80", "\xE2\x82"})
    EXPECT_THAT(error_of(minimal_deck, {{"run.folder", text}}), HasSubstr("is not UTF-8 text"));
  EXPECT_EQ(error_of(minimal_deck, {{"run.folder", "r\xff"}}),
            "--set run.folder=r\\xFF: is not UTF-8 text, which a deck must be");
}

TEST(DeckOverride, DeepKeysAndValuesAreRefused) {
  std::string deep = "a";
  for (int i = 1; i < 50000; ++i) deep += ".a";
  EXPECT_THAT(error_of(minimal_deck, {{deep, "1"}}), HasSubstr("a key of 50000 parts"));
  const std::string message = error_of(minimal_deck, {{"batch", "{" + deep + " = 1}"}});
  EXPECT_THAT(message, StartsWith("--set batch={a.a.a"));
  EXPECT_LT(message.size(), deep.size() / 10);  // short enough to read
}

TEST(DeckOverride, ALongValueDoesNotHideTheReason) {
  const std::string word(3000, 'x');
  std::string words;
  for (int i = 0; i < 1000; ++i) words += "\xC3\xA4 \" ";
  for (const std::string& value : {word, words}) {
    for (const auto& [key, reason] :
         {std::pair("model.kind", "is not a choice; choices: \"resnet\""),
          {"batch.global", "must be an integer"},
          {"optimizer", "must be a table"}}) {
      const std::string message = error_of(minimal_deck, {{key, value}});
      EXPECT_THAT(message, HasSubstr(reason));
      EXPECT_LT(message.size(), 1000U);
      EXPECT_TRUE(is_utf8(message)) << message;
    }
    const std::string file = error_of(minimal_deck + "[" + word + "]\n");
    EXPECT_THAT(file, HasSubstr("unknown table"));
  }
}

TEST(DeckOverride, AnInjectedTableIsAString) {
  EXPECT_NE(error_of(minimal_deck, {{"run.seed", "1\n[batch]\nmicro = 3"}}), "");
}

}  // namespace
}  // namespace trireme::deck
