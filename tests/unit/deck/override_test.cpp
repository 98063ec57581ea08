#include "support.hpp"

namespace trireme::deck {
namespace {

Deck with(const std::vector<Override>& overrides) { return parse(least, "deck.toml", overrides); }

TEST(DeckOverride, ValuesAreTomlOrElseStrings) {
  EXPECT_EQ(with({{"optimizer.momentum", "0.5"}}).optimizer.momentum, 0.5);
  EXPECT_EQ(with({{"run.stop", "3 epochs"}}).run.stop, (Duration{3, Duration::Unit::epochs}));
  EXPECT_EQ(with({{"run.stop", "\"3 epochs\""}}).run.stop, (Duration{3, Duration::Unit::epochs}));
  EXPECT_EQ(with({{"run.name", "other"}}).run.name, "other");
  EXPECT_EQ(with({{"run.name", "other"}}).run.folder, "runs/other");
  EXPECT_EQ(with({{"run.name", "2024"}}).run.name, "2024");
  EXPECT_EQ(with({{"data.train", "true"}}).data.train, "true");
  EXPECT_TRUE(with({{"data.augment.flip", "true"}}).data.augment.flip);
  EXPECT_EQ(with({{"data.augment.normalize", "{ mean = [0.5], std = [2] }"}}).data.augment.std, std::vector<double>{2});
  EXPECT_EQ(with({{"optimizer", "{ kind = \"lars\", momentum = 0.8 }"}}).optimizer.momentum, 0.8);
}

TEST(DeckOverride, TheLastOneHolds) {
  EXPECT_EQ(with({{"run.seed", "2"}, {"run.seed", "3"}}).run.seed, 3u);
  EXPECT_EQ(with({{"run.seed", "many"}, {"run.seed", "3"}}).run.seed, 3u);
}

TEST(DeckOverride, MistakesNameTheArgument) {
  EXPECT_EQ(complaint(least, {{"optimizer.momentum", "abc"}}), "--set optimizer.momentum=abc: must be a number, not a string (\"abc\")");
  EXPECT_EQ(complaint(least, {{"optimizer.momentun", "0.9"}}), "--set optimizer.momentun=0.9: unknown key, did you mean \"momentum\"?");
  EXPECT_EQ(complaint(least, {{"optimiser.momentum", "0.9"}}).substr(0, 42), "--set optimiser.momentum=0.9: [optimiser]:");
  EXPECT_EQ(complaint(least, {{"optimizer.kind", "adamv"}}).substr(0, 29), "--set optimizer.kind=adamv: \"");
  EXPECT_EQ(complaint(least, {{"optimizer", "{ kind = \"sgd\", rat = 1 }"}}).substr(0, 55), "--set optimizer={ kind = \"sgd\", rat = 1 }: [optimizer] ");
  EXPECT_EQ(complaint(least, {{"momentum", "0.9"}}), "--set momentum=0.9: unknown table or key; momentum is a key of [optimizer]");
  EXPECT_NE(complaint(least, {{"optimizer.", "0.9"}}).find("--set optimizer.=0.9: a key is written table.key"), std::string::npos);
  EXPECT_NE(complaint(least, {{"run.name.x", "0.9"}}).find("--set run.name.x=0.9: name is not a table"), std::string::npos);
  EXPECT_NE(complaint(least, {{"batch.global", "500"}}).find("--set batch.global=500: batch.global = 500 is not a multiple"), std::string::npos);
}

TEST(DeckOverride, AnInjectedTableIsAString) { EXPECT_NE(complaint(least, {{"run.seed", "1\n[batch]\nmicro = 3"}}), ""); }

}  // namespace
}  // namespace trireme::deck
