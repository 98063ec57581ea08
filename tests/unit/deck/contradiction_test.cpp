#include "support.hpp"

namespace trireme::deck {
namespace {

bool says(const std::string& message, const std::string& part) { return message.find(part) != std::string::npos; }

TEST(DeckContradictions, GlobalBatchIsAMultipleOfTheMicroBatch) {
  const std::string message = complaint(least + "[batch]\nglobal = 500\nmicro = 64\n");
  EXPECT_TRUE(message.starts_with("deck.toml:8:10: [batch] global: batch.global = 500 is not a multiple of batch.micro = 64")) << message;
  EXPECT_TRUE(says(message, "use batch.global = 448 or 512, or batch.micro = 50")) << message;
  // What the message proposes is right.
  EXPECT_EQ(complaint(least + "[batch]\nglobal = 448\nmicro = 64\n"), "");
  EXPECT_EQ(complaint(least + "[batch]\nglobal = 500\nmicro = 50\n"), "");
  EXPECT_TRUE(says(complaint(least + "[batch]\nglobal = 32\n"), "batch.micro = 64, its default")) << complaint(least + "[batch]\nglobal = 32\n");
}

TEST(DeckContradictions, GlobalBatchDividesOverGivenReplicas) {
  const std::string message = complaint(least + "[batch]\nglobal = 256\nmicro = 64\n[parallel]\ndata = 3\n");
  EXPECT_TRUE(says(message, "parallel.data = 3")) << message;
  EXPECT_TRUE(says(message, "use batch.global = 192 or 384")) << message;
}

TEST(DeckContradictions, AStopInTimeNeedsTheSchedulesLength) {
  const std::string deck = "[run]\nname = \"a\"\nstop = \"2 hours\"\n[model]\ndepth = 8\n[data]\ntrain = \"t\"\n[schedule]\n";
  EXPECT_TRUE(complaint(deck).starts_with("deck.toml:8:1: [schedule] length: missing; run.stop = \"2 hours\" is a time")) << complaint(deck);
  EXPECT_EQ(complaint(deck + "length = \"90 epochs\"\n"), "");
}

TEST(DeckContradictions, BestNeedsAValidationSet) {
  const std::string message = complaint(least + "[checkpoint]\nbest = \"top1\"\n");
  EXPECT_TRUE(message.starts_with("deck.toml:8:8: [checkpoint] best: \"top1\" is measured on data.validation, which is missing")) << message;
}

TEST(DeckContradictions, WarmupFitsTheRun) {
  EXPECT_TRUE(says(complaint(least + "[schedule]\nwarmup = \"11 epochs\"\n"), "longer than the run, run.stop = \"10 epochs\""));
  EXPECT_EQ(complaint(least + "[schedule]\nwarmup = \"10 epochs\"\n"), "");
  EXPECT_TRUE(says(complaint(least + "[schedule]\nlength = \"10 steps\"\nwarmup = \"2561 samples\"\n"), "longer than the schedule.length"));
  EXPECT_EQ(complaint(least + "[schedule]\nlength = \"10 steps\"\nwarmup = \"2560 samples\"\n"), "");
}

TEST(DeckContradictions, OthersAreFound) {
  EXPECT_TRUE(says(complaint(least + "[optimizer]\nmomentum = 0\nnesterov = true\n"), "needs a momentum"));
  EXPECT_TRUE(says(complaint(least, {{"run.walltime", "4 minutes"}}), "walltime_margin: \"5 minutes\", its default, leaves nothing of walltime"));
}

TEST(DeckContradictions, AreNotJudgedOnKeysThatAreWrongByThemselves) {
  EXPECT_EQ(lines_of(complaint(least + "[batch]\nglobal = -500\nmicro = 64\n")), 1);
}

}  // namespace
}  // namespace trireme::deck
