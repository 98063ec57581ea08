// SPDX-License-Identifier: Apache-2.0
//
// Pairs of deck keys that contradict each other, and the remedies that the messages propose.
#include "support.hpp"

namespace trireme::deck {
namespace {

bool says(const std::string& message, const std::string& part) {
  return message.find(part) != std::string::npos;
}

TEST(DeckContradictions, GlobalBatchIsAMultipleOfTheMicroBatch) {
  const std::string message = error_of(minimal_deck + "[batch]\nglobal = 500\nmicro = 64\n");
  EXPECT_TRUE(message.starts_with(
      "deck.toml:8:10: [batch] global: batch.global = 500 is not a multiple of batch.micro = 64"))
      << message;
  EXPECT_TRUE(says(message, "use batch.global = 448 or 512, or batch.micro = 50")) << message;
  // The proposed values are valid.
  EXPECT_EQ(error_of(minimal_deck + "[batch]\nglobal = 448\nmicro = 64\n"), "");
  EXPECT_EQ(error_of(minimal_deck + "[batch]\nglobal = 500\nmicro = 50\n"), "");
  EXPECT_TRUE(
      says(error_of(minimal_deck + "[batch]\nglobal = 32\n"), "batch.micro = 64, its default"))
      << error_of(minimal_deck + "[batch]\nglobal = 32\n");
}

TEST(DeckContradictions, GlobalBatchDividesOverGivenReplicas) {
  const std::string message =
      error_of(minimal_deck + "[batch]\nglobal = 256\nmicro = 64\n[parallel]\ndata = 3\n");
  EXPECT_TRUE(says(message, "batch.micro = 64 x parallel.data = 3")) << message;
  EXPECT_TRUE(says(message, "use batch.global = 192 or 384")) << message;
}

TEST(DeckContradictions, ARampTakesThePlaceOfTheGlobalBatch) {
  const std::string ramp = "[batch]\nramp = [[\"0 epochs\", 128], [\"5 epochs\", 512]]\n",
                    deck = minimal_deck + ramp;
  EXPECT_EQ(error_of(deck), "");
  EXPECT_EQ(parse(deck, "deck.toml").batch.global, 128) << "that of the first row";
  EXPECT_TRUE(error_of(deck + "global = 256\n")
                  .starts_with("deck.toml:9:10: [batch] global: is replaced by batch.ramp"))
      << error_of(deck + "global = 256\n");
  EXPECT_TRUE(
      says(error_of(deck + "micro = 96\n"),
           "[batch] ramp: in the row \"0 epochs\": a step of 128 samples is not a multiple of "
           "batch.micro = 96"))
      << error_of(deck + "micro = 96\n");
  EXPECT_TRUE(says(error_of(deck + "[parallel]\ndata = 4\n"), "in the row \"0 epochs\""))
      << error_of(deck + "[parallel]\ndata = 4\n");
  EXPECT_TRUE(
      says(error_of(deck + "[parallel]\nsync = \"delayed\"\n"),
           "[batch] ramp: a row ends when all updates are made, so it needs parallel.sync = "
           "\"step\""))
      << error_of(deck + "[parallel]\nsync = \"delayed\"\n");
  const std::string steps =
      "[schedule]\nkind = \"exponential\"\ngamma = 0.9\nevery = \"100 steps\"\n";
  EXPECT_TRUE(says(error_of(deck + steps),
                   "[schedule] every: \"100 steps\" has no fixed number of "
                   "samples"))
      << error_of(deck + steps);
  EXPECT_EQ(error_of(minimal_deck + steps), "");
}

TEST(DeckContradictions, FusedSoftmaxNeedsWholeRowsOfLogits) {
  const std::string key = "[debug]\nfused_softmax = true\n";
  EXPECT_TRUE(says(error_of(minimal_deck + key),
                   "[debug] fused_softmax: true changes the head of a language model, but "
                   "model.kind = \"resnet\"; remove it, or use kind = \"gpt\""))
      << error_of(minimal_deck + key);
  EXPECT_EQ(error_of(minimal_deck + "[debug]\nfused_softmax = false\n"), "");
  EXPECT_EQ(error_of(minimal_gpt_deck + key), "");
  const std::string split = error_of(minimal_gpt_deck + key + "[parallel]\ntensor = 2\n");
  EXPECT_TRUE(says(split,
                   "needs whole rows of logits, but each rank of parallel.tensor = 2 has a "
                   "part of the vocabulary; remove it, or use tensor = 1"))
      << split;
}

TEST(DeckContradictions, JoinedNormsNeedBatchNormsOfOneRank) {
  const std::string key = "[debug]\njoined_norms = true\n", resnet = minimal_deck + key;
  const auto error_with = [&](const Override& other) { return error_of(resnet, {other}); };
  EXPECT_EQ(error_of(resnet), "");
  for (const auto& [other, value, part] :
       {std::tuple("model.norm", "group", "joins batch norms, but model.norm = \"group\""),
        {"model.drop_path", "0.1", "model.drop_path = 0.1 scales the branch behind its norm"},
        {"parallel.sync_batch_norm", "true", "but parallel.sync_batch_norm gathers them"}})
    EXPECT_TRUE(says(error_with({other, value}), part)) << error_with({other, value});
  EXPECT_TRUE(says(error_of(minimal_gpt_deck + key),
                   "[debug] joined_norms: true joins norms of a residual network, but model.kind = "
                   "\"gpt\"; remove it, or use kind = \"resnet\""))
      << error_of(minimal_gpt_deck + key);
}

TEST(DeckMistakes, NameTheWrongRowOfARamp) {
  const auto error_with = [](const std::string& value) {
    return error_of(minimal_deck + "[batch]\nramp = " + value + "\n");
  };
  for (const auto& [value, part] :
       {std::pair("256", "must be a list of rows, as in [[\"0 epochs\", 256]"),
        {"[[\"0 epochs\", 256], [\"1 epoch\", 256]]",
         "the row \"1 epoch\" has the 256 samples of the row before it; remove it"},
        {"[256, 512]", "each row needs a duration in quotes and a number of samples"},
        {"[[\"0 epochs\", 256, 1]]", "each row needs a duration in quotes and a number of samples"},
        {"[[\"0 epochs\", 256.0]]", "each row needs a duration in quotes and a number of samples"},
        {"[[\"1 epoch\", 256]]", "\"1 epoch\": the first row begins at the start of the run"},
        {"[[\"0 epochs\", 0]]", "samples of a step: 0 is out of range"},
        {"[[\"0 epochs\", 256], [\"1 hour\", 512]]",
         "\"1 hour\": must be counted in epochs, steps or samples, not in time"},
        {"[[\"0 epochs\", 256], [\"1 epok\", 512]]", "unknown unit \"epok\""},
        {"[[\"0 epochs\", 256], [\"5M tokens\", 512]]",
         "a duration in tokens needs a token dataset"}})
    EXPECT_TRUE(says(error_with(value), part)) << error_with(value);
}

TEST(DeckContradictions, AStopInTimeNeedsTheSchedulesLength) {
  const std::string deck =
      "[run]\nname = \"a\"\nstop = \"2 hours\"\n[model]\ndepth = 8\n[data]\ntrain = "
      "\"t\"\n[schedule]\n";
  EXPECT_TRUE(error_of(deck).starts_with(
      "deck.toml:8:1: [schedule] length: missing; run.stop = \"2 hours\" is a time"))
      << error_of(deck);
  EXPECT_EQ(error_of(deck + "length = \"90 epochs\"\n"), "");
}

TEST(DeckContradictions, BestNeedsAValidationSet) {
  const std::string message = error_of(minimal_deck + "[checkpoint]\nbest = \"top1\"\n");
  EXPECT_TRUE(
      message.starts_with("deck.toml:8:8: [checkpoint] best: \"top1\" is measured on "
                          "data.validation, which is missing"))
      << message;
}

TEST(DeckContradictions, DropPathIsAProbabilityBelowOne) {
  for (const std::string& deck : {minimal_deck, minimal_gpt_deck}) {
    EXPECT_EQ(error_of(deck, {{"model.drop_path", "0.999"}}), "");
    EXPECT_TRUE(says(error_of(deck, {{"model.drop_path", "1"}}),
                     "1 is out of range; must be at least 0 and below 1"));
    EXPECT_TRUE(says(error_of(deck, {{"model.drop_path", "-0.1"}}), "-0.1 is out of range"));
  }
  EXPECT_TRUE(says(error_of(minimal_mlp_deck, {{"model.drop_path", "0.1"}}),
                   "belongs to kind = \"resnet\" or \"gpt\"; remove it"));
}

TEST(DeckContradictions, WarmupFitsTheRun) {
  EXPECT_TRUE(says(error_of(minimal_deck + "[schedule]\nwarmup = \"11 epochs\"\n"),
                   "longer than the run, run.stop = \"10 epochs\""));
  EXPECT_EQ(error_of(minimal_deck + "[schedule]\nwarmup = \"10 epochs\"\n"), "");
  EXPECT_TRUE(says(
      error_of(minimal_deck + "[schedule]\nlength = \"10 steps\"\nwarmup = \"2561 samples\"\n"),
      "longer than the schedule.length"));
  EXPECT_EQ(
      error_of(minimal_deck + "[schedule]\nlength = \"10 steps\"\nwarmup = \"2560 samples\"\n"),
      "");
}

struct Contradiction {
  const char* name;
  /// Added to the smallest gpt deck: 12 heads, width 768, context 1024.
  std::vector<Override> given;
  std::string expected;  ///< part of the message
  /// Proposed changes; each one by itself makes the deck valid.
  std::vector<Override> remedy;
};

class LayoutContradictions : public testing::TestWithParam<Contradiction> {};

TEST_P(LayoutContradictions, AreNamedWithARemedyThatHolds) {
  const Contradiction& c = GetParam();
  const std::string message = error_of(minimal_gpt_deck, c.given);
  EXPECT_TRUE(says(message, c.expected)) << message;
  EXPECT_EQ(count_lines(message), 1) << message;
  for (const Override& remedy : c.remedy) {
    std::vector<Override> repaired = c.given;
    repaired.push_back(remedy);
    EXPECT_EQ(error_of(minimal_gpt_deck, repaired), "") << remedy.key << " = " << *remedy.value;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Gpt, LayoutContradictions,
    testing::Values(
        Contradiction{
            "heads_do_not_divide_the_width",
            {{"model.heads", "7"}, {"model.width", "100"}},
            "model.width = 100 is not a multiple of model.heads = 7 (all heads have the same "
            "width); use model.width = 98 or 105, or model.heads = 5 or 10",
            {{"model.width", "98"},
             {"model.width", "105"},
             {"model.heads", "5"},
             {"model.heads", "10"}}},
        Contradiction{"float8_of_split_tensors",
                      {{"precision.compute", "\"float8\""}, {"parallel.tensor", "2"}},
                      "\"float8\" scales a tensor by its largest value, but each rank of "
                      "parallel.tensor = 2 has only a part of the tensor; use "
                      "\"bfloat16\", or tensor = 1 with more data ranks or stages",
                      {{"precision.compute", "\"bfloat16\""}, {"parallel.tensor", "1"}}},
        Contradiction{"stochastic_depth_of_one_block",
                      {{"model.layers", "1"}, {"model.drop_path", "0.1"}},
                      "0.1 is the probability at the last block, and 0 that at the first, but "
                      "model.layers = 1; use drop_path = 0, or layers = 2",
                      {{"model.layers", "2"}, {"model.drop_path", "0"}}},
        Contradiction{"width_does_not_fit_the_default",
                      {{"model.width", "256"}},
                      "--set model.width=256: model.width = 256 is not a multiple of model.heads = "
                      "12, its default",
                      {{"model.width", "252"},
                       {"model.width", "264"},
                       {"model.heads", "8"},
                       {"model.heads", "16"}}},
        Contradiction{
            "heads_of_odd_width_cannot_turn",
            {{"model.heads", "4"}, {"model.width", "20"}, {"model.positions", "rope"}},
            "but a head's width is model.width / model.heads = 5, which is odd; use model.width = "
            "16 or 24",
            {{"model.width", "16"}, {"model.width", "24"}, {"model.positions", "learned"}}},
        Contradiction{"kv_heads_do_not_divide_heads",
                      {{"model.kv_heads", "5"}},
                      "5 does not divide model.heads = 12, its default (each key and value head "
                      "serves the same number of heads); use 4 or 6",
                      {{"model.kv_heads", "4"}, {"model.kv_heads", "6"}}},
        Contradiction{"more_kv_heads_than_heads",
                      {{"model.kv_heads", "24"}},
                      "use 12",
                      {{"model.kv_heads", "12"}}},
        Contradiction{"tensor_does_not_divide_heads",
                      {{"parallel.tensor", "8"}},
                      "8 does not divide model.heads = 12, its default (each rank of a tensor "
                      "group takes an equal part); use 6 or 12",
                      {{"parallel.tensor", "6"}, {"parallel.tensor", "12"}}},
        Contradiction{"tensor_does_not_divide_kv_heads",
                      {{"parallel.tensor", "4"}, {"model.kv_heads", "2"}},
                      "4 does not divide model.kv_heads = 2",
                      {{"parallel.tensor", "2"}}},
        Contradiction{"tensor_does_not_divide_mlp_width",
                      {{"parallel.tensor", "4"}, {"model.mlp_width", "1002"}},
                      "4 does not divide model.mlp_width = 1002 ",
                      {{"parallel.tensor", "3"}, {"parallel.tensor", "6"}}},
        Contradiction{"sequence_without_tensor",
                      {{"parallel.sequence", "true"}},
                      "but parallel.tensor = 1, its default; use sequence = false, or tensor = 2",
                      {{"parallel.sequence", "false"}, {"parallel.tensor", "2"}}},
        Contradiction{
            "rows_do_not_divide",
            {{"parallel.sequence", "true"},
             {"parallel.tensor", "4"},
             {"model.context", "6"},
             {"batch.micro", "7"},
             {"batch.global", "168"}},
            "batch.micro = 7 x model.context = 6 rows are not divisible by parallel.tensor "
            "= 4; use batch.micro = 6 or 8, or sequence = false",
            {{"batch.micro", "6"}, {"batch.micro", "8"}, {"parallel.sequence", "false"}}},
        Contradiction{
            "interleaved_without_pipeline",
            {{"parallel.pipeline_schedule", "interleaved"}, {"parallel.pipeline_chunks", "2"}},
            "\"interleaved\" needs two stages or more, but parallel.pipeline = 1, its default; use "
            "pipeline = 2",
            {{"parallel.pipeline", "2"}}},
        Contradiction{"interleaved_without_chunks",
                      {{"parallel.pipeline_schedule", "interleaved"}, {"parallel.pipeline", "2"}},
                      "needs two chunks a stage or more, but parallel.pipeline_chunks = 1, its "
                      "default; use pipeline_chunks = 2, or \"1f1b\"",
                      {{"parallel.pipeline_chunks", "2"}, {"parallel.pipeline_schedule", "1f1b"}}},
        Contradiction{
            "chunks_without_interleaved",
            {{"parallel.pipeline_chunks", "2"}, {"parallel.pipeline", "2"}},
            "2 chunks a stage need pipeline_schedule = \"interleaved\"",
            {{"parallel.pipeline_chunks", "1"}, {"parallel.pipeline_schedule", "interleaved"}}},
        Contradiction{
            "local_steps_of_sharded_weights",
            {{"parallel.sync", "every 4 steps"}, {"parallel.shard", "optimizer"}},
            "between two averages each rank has weights of its own, which cannot be sharded; "
            "use shard = \"none\", or sync = \"step\" or \"delayed\"",
            {{"parallel.shard", "none"}, {"parallel.sync", "step"}, {"parallel.sync", "delayed"}}},
        Contradiction{
            "evaluations_between_averages",
            {{"parallel.sync", "every 8 steps"},
             {"data.validation", "somewhere"},
             {"evaluate.every", "20 steps"}},
            "\"20 steps\" is not a multiple of parallel.sync = \"every 8 steps\" (the ranks "
            "have one state only after an average); use \"16 "
            "steps\" or \"24 steps\"",
            {{"evaluate.every", "16 steps"},
             {"evaluate.every", "24 steps"},
             {"evaluate.every", "20 samples"},
             {"parallel.sync", "every 4 steps"}}},
        Contradiction{"checkpoints_between_averages",
                      {{"parallel.sync", "every 8 steps"}, {"checkpoint.every", "5 steps"}},
                      "; use \"8 steps\"",
                      {{"checkpoint.every", "8 steps"}}},
        Contradiction{"outer_momentum_of_every_step",
                      {{"parallel.outer_momentum", "0.5"}},
                      "parallel.sync = \"step\", its default; use outer_momentum = 0, or sync = "
                      "\"every 8 steps\"",
                      {{"parallel.outer_momentum", "0"}, {"parallel.sync", "every 8 steps"}}},
        Contradiction{"whole_parameters_on_the_host",
                      {{"parallel.offload", "[\"parameters\"]"}},
                      "\"parameters\" are loaded block by block, as with shard = "
                      "\"parameters\"; use that",
                      {{"parallel.shard", "parameters"}, {"parallel.offload", "[\"optimizer\"]"}}},
        Contradiction{
            "warmup_in_tokens",
            {{"run.stop", "10 steps"},
             {"schedule.warmup", "3M tokens"}},  // 10 steps of 256 x 1024 tokens are 2.6 million
            "\"3000000 tokens\" is longer than the run, run.stop = \"10 steps\"",
            {{"schedule.warmup", "2621440 tokens"}}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DeckContradictions, SyncBatchNormNeedsBatchNormOnSeveralRanks) {
  const auto error = [](const std::string& deck, std::vector<Override> more) {
    more.push_back({"parallel.sync_batch_norm", "true"});
    return error_of(deck, more);
  };
  EXPECT_EQ(error(minimal_deck, {}), "");
  EXPECT_EQ(error(minimal_mlp_deck, {}),
            "--set parallel.sync_batch_norm=true: true joins the statistics of batch norm, but "
            "model.kind = \"mlp\" has none; use sync_batch_norm = false");
  EXPECT_TRUE(says(error(minimal_gpt_deck, {}), "but model.kind = \"gpt\" has none"));
  EXPECT_TRUE(says(error(minimal_deck, {{"model.norm", "group"}}),
                   "but model.norm = \"group\" takes those of each sample by itself; use "
                   "sync_batch_norm = false, or norm = \"batch\""));
  EXPECT_TRUE(
      says(error(minimal_deck, {{"parallel.sync", "every 8 steps"}}),
           "in every micro-batch, but with parallel.sync = \"every 8 steps\" each data rank "
           "trains by itself; use sync_batch_norm = false, or sync = \"step\" or "
           "\"delayed\""));
  EXPECT_EQ(error(minimal_deck, {{"parallel.sync", "delayed"}}), "");
  EXPECT_TRUE(
      says(error(minimal_deck, {{"parallel.data", "1"}}),
           "several data ranks, but here is parallel.data = 1; use sync_batch_norm = false, "
           "or data = 2 or more"));
  EXPECT_EQ(error(minimal_deck, {{"parallel.data", "2"}}), "");
}

TEST(DeckContradictions, GroupsOfBatchNormDivideTheDataRanks) {
  const auto error = [](const char* data, const char* group) {
    return error_of(minimal_deck, {{"batch.global", "768"},
                                   {"batch.micro", "32"},
                                   {"parallel.data", data},
                                   {"parallel.sync_batch_norm", group}});
  };
  EXPECT_EQ(error("4", "3"),
            "--set parallel.sync_batch_norm=3: parallel.sync_batch_norm = 3 does not divide "
            "parallel.data = 4 (every group has as many neighbors); use 2 or 4");
  EXPECT_TRUE(says(error("3", "2"), "; use 3"));
  EXPECT_TRUE(says(error("4", "8"), "; use 4, or true"));
  for (const char* right : {"2", "4", "true", "false"}) EXPECT_EQ(error("4", right), "");
}

TEST(DeckContradictions, AKindOfScheduleNeedsItsKeys) {
  const auto error = [](const std::string& lines) {
    return error_of(minimal_deck + "[schedule]\n" + lines);
  };
  EXPECT_TRUE(
      says(error("kind = \"step\"\n"),
           "deck.toml:7:1: [schedule] milestones: missing; kind = \"step\" needs milestones"));
  EXPECT_TRUE(says(error("kind = \"step\"\nmilestones = [\"3 epochs\"]\nevery = \"1 epoch\"\n"),
                   "deck.toml:10:9: [schedule] every: \"1 epoch\" replaces milestones"));
  EXPECT_EQ(error("kind = \"step\"\nmilestones = [\"3 epochs\", \"5 epochs\"]\n"), "");
  EXPECT_TRUE(says(error("kind = \"step\"\nmilestones = [3]\n"),
                   "must contain only durations in quotes, as in [\"30 epochs\", \"60 epochs\"]; "
                   "here it contains an integer"));
  EXPECT_TRUE(says(error("kind = \"step\"\nmilestones = \"3 epochs\"\n"),
                   "must be a list of durations in quotes"));
  EXPECT_TRUE(
      says(error("kind = \"exponential\"\n"), "[schedule] gamma: missing; give the factor"));
  EXPECT_TRUE(says(error("kind = \"exponential\"\ngamma = 0.9\nevery = \"none\"\n"),
                   "[schedule] every: \"none\", but kind = \"exponential\" needs an interval"));
  EXPECT_TRUE(says(error("kind = \"restarts\"\n"), "[schedule] period: missing; give the length"));
  EXPECT_TRUE(says(error("kind = \"restarts\"\nperiod = \"1 epoch\"\nfactor = 0.5\n"),
                   "[schedule] factor: 0.5 is out of range; must be at least 1"));
  EXPECT_TRUE(
      says(error("kind = \"plateau\"\n"),
           "[schedule] kind: \"plateau\" follows the evaluations on data.validation, which is "
           "missing"));
  EXPECT_TRUE(says(error_of(minimal_deck + "validation = \"v\"\n[schedule]\nkind = \"plateau\"\n"
                                           "metric = \"perplexity\"\n"),
                   "\"perplexity\" is measured for language models"));
  EXPECT_TRUE(says(error("kind = \"one-cycle\"\nwarmup = \"1 epoch\"\n"),
                   "[schedule] warmup: belongs to a kind other than \"one-cycle\""));
  EXPECT_TRUE(
      says(error("kind = \"one-cycle\"\nmomentum = [0.9, 0.8]\n"),
           "[schedule] momentum: [0.9, 0.8]: the lower number comes first; write [0.8, 0.9]"));
  EXPECT_TRUE(says(error("kind = \"one-cycle\"\n[optimizer]\nmomentum = 0.9\n"),
                   "[optimizer] momentum: belongs to a schedule.kind other than \"one-cycle\""));
  EXPECT_EQ(error("kind = \"one-cycle\"\n[optimizer]\nkind = \"adamw\"\n"), "");
  EXPECT_TRUE(says(error("kind = \"one-cycle\"\nmomentum = [0.8, 0.9]\n[optimizer]\n"
                         "kind = \"adamw\"\n"),
                   "[schedule] momentum: belongs to kind = \"one-cycle\" with optimizer.kind"));
}

TEST(DeckContradictions, ASubsetDecidesNothing) {
  const std::string deck = minimal_deck + "validation = \"v\"\n";
  EXPECT_EQ(error_of(deck + "[evaluate]\nsubset = 100\n"), "");
  EXPECT_EQ(parse(deck + "[evaluate]\nsubset = 100\n", "deck.toml").checkpoint.best, "");
  EXPECT_EQ(parse(deck + "[evaluate]\nsubset = 0\n", "deck.toml").checkpoint.best, "top1");
  EXPECT_TRUE(says(error_of(minimal_deck + "[evaluate]\nsubset = 100\n"),
                   "deck.toml:8:10: [evaluate] subset: 100 samples of data.validation, which is"));
  EXPECT_TRUE(says(
      error_of(deck + "[evaluate]\nsubset = 100\n[checkpoint]\nbest = \"loss\"\n"),
      "deck.toml:9:10: [evaluate] subset: 100 samples are too few to decide which checkpoint"));
  EXPECT_TRUE(says(error_of(deck + "[evaluate]\nsubset = 100\n[schedule]\nkind = \"plateau\"\n"),
                   "100 samples are too few to decide about the rate"));
}

TEST(DeckContradictions, OnlyAScheduleWithAnEndNeedsALength) {
  const auto error = [](const std::string& lines) {
    return error_of(
        "[run]\nname = \"a\"\nstop = \"2 hours\"\n[model]\ndepth = 8\n[data]\ntrain = "
        "\"t\"\nvalidation = \"v\"\n[schedule]\n" +
        lines);
  };
  for (const char* kind : {"cosine", "polynomial", "one-cycle"})
    EXPECT_TRUE(says(error(fmt::format("kind = \"{}\"\n", kind)), "length: missing")) << kind;
  for (const char* lines :
       {"kind = \"constant\"\n", "kind = \"plateau\"\n", "kind = \"step\"\nevery = \"1 epoch\"\n",
        "kind = \"exponential\"\ngamma = 0.9\n", "kind = \"restarts\"\nperiod = \"1 epoch\"\n"})
    EXPECT_EQ(error(lines), "") << lines;
}

TEST(DeckContradictions, ModelsOfImagesAreNotSplit) {
  const std::string message = error_of(minimal_deck + "[parallel]\ntensor = 2\n");
  EXPECT_TRUE(message.starts_with(
      "deck.toml:8:10: [parallel] tensor: 2 splits the layers of model.kind = \"gpt\" only"))
      << message;
  EXPECT_EQ(error_of(minimal_deck +
                     "[parallel]\npipeline = 2\nshard = \"optimizer\"\nrecompute = \"all\"\n"),
            "");
  EXPECT_TRUE(says(error_of(minimal_deck, {{"parallel.sequence", "true"}}), "use sequence = false"))
      << error_of(minimal_deck, {{"parallel.sequence", "true"}});
  EXPECT_FALSE(says(error_of(minimal_deck, {{"parallel.sequence", "true"}}), "tensor = 2"));
}

TEST(DeckContradictions, OneOfTwoCropsIsEnough) {
  const std::string crop = "[data.augment]\nrandom_resized_crop = { size = 32 }\n";
  EXPECT_TRUE(error_of(minimal_deck + crop + "random_crop = 4\n")
                  .starts_with("deck.toml:9:15: [data.augment] random_crop: 4 pixels, but "
                               "random_resized_crop moves the image already"));
  EXPECT_EQ(error_of(minimal_deck + crop), "");
}

TEST(DeckContradictions, FastDecodingNeedsTheSizeOfACrop) {
  const std::string fast = minimal_deck + "decode = \"fast\"\n";
  EXPECT_TRUE(error_of(fast).starts_with(
      "deck.toml:7:10: [data] decode: \"fast\" decodes at the resolution that "
      "data.augment.random_resized_crop needs, which is missing; give it"))
      << error_of(fast);
  EXPECT_EQ(error_of(fast + "[data.augment]\nrandom_resized_crop = { size = 224 }\n"), "");
  EXPECT_EQ(error_of(minimal_deck + "decode = \"exact\"\n"), "");
}

TEST(DeckContradictions, MixedSamplesComeInPairs) {
  const std::string mixed = "[data.augment]\nmixup = 0.2\n";
  const auto with = [&](const std::string& text, const char* micro, const char* global = "840",
                        const char* ranks = "1") {
    return error_of(minimal_deck + text,
                    {{"batch.micro", micro}, {"batch.global", global}, {"parallel.data", ranks}});
  };
  EXPECT_EQ(with(mixed, "7"),
            "--set batch.micro=7: batch.micro = 7 is odd, but data.augment.mixup mixes the samples "
            "of a micro-batch in pairs; use batch.micro = 6 or 8");
  EXPECT_TRUE(says(with("[data.augment]\ncutmix = 1\n", "1"),
                   "batch.micro = 1 is odd, but data.augment.cutmix mixes the samples of a "
                   "micro-batch in pairs; use batch.micro = 2"));
  // The remedies fit the global batch and the replicas, too.
  const auto expect_remedy = [&](const char* micro, const char* global, const char* ranks,
                                 const std::string& remedy,
                                 const std::vector<std::pair<const char*, const char*>>& valid) {
    const std::string message = with(mixed, micro, global, ranks);
    EXPECT_TRUE(message.ends_with("; use " + remedy)) << message;
    EXPECT_EQ(count_lines(message), 1) << message;
    for (const auto& [good_micro, good_global] : valid)
      EXPECT_EQ(with(mixed, good_micro, good_global, ranks), "") << good_micro;
  };
  expect_remedy("15", "60", "1", "batch.micro = 12 or 20", {{"12", "60"}, {"20", "60"}});
  expect_remedy("15", "60", "3", "batch.micro = 10 or 20", {{"10", "60"}, {"20", "60"}});
  expect_remedy("21", "42", "3", "batch.micro = 14", {{"14", "42"}});
  expect_remedy("21", "63", "1", "batch.micro = 22 with batch.global = 44 or 66",
                {{"22", "44"}, {"22", "66"}});
  expect_remedy("7", "61", "4", "batch.micro = 8 with batch.global = 32 or 64",
                {{"8", "32"}, {"8", "64"}});
  expect_remedy("6", "40", "1", "batch.global = 36 or 42, or batch.micro = 4",
                {{"6", "36"}, {"6", "42"}, {"4", "40"}});
  expect_remedy("8", "33", "1", "batch.global = 32 or 40", {{"8", "32"}, {"8", "40"}});
  expect_remedy("8", "30", "3", "batch.global = 24 or 48, or batch.micro = 2",
                {{"8", "24"}, {"8", "48"}, {"2", "30"}});
  EXPECT_EQ(with(mixed, "6"), "");
  EXPECT_EQ(with("[data.augment]\nmixup = 0\ncutmix = false\nerase = {}\n", "7"), "");
  // An evaluation mixes nothing.
  EXPECT_NO_THROW(parse(minimal_deck + mixed, "deck.toml",
                        {{"batch.micro", "7"}, {"batch.global", "840"}}, DeckPurpose::evaluation));
}

// The layout of the steps is that of training; an evaluation makes one pass, on the ranks it has.
TEST(DeckContradictions, AnEvaluationNeedsNoStepsOfWholeMicroBatches) {
  const std::string interleaved =
      "[parallel]\npipeline = 2\npipeline_schedule = \"interleaved\"\npipeline_chunks = 2\n";
  const std::string ramp = "[batch]\nramp = [[\"0 epochs\", 8], [\"1 epoch\", 24]]\nmicro = 8\n";
  struct Case {
    std::string deck;
    std::vector<Override> overrides;
  };
  for (const auto& [deck, overrides] : std::vector<Case>{
           {minimal_deck, {{"batch.micro", "7"}}},
           {minimal_deck, {{"batch.global", "100"}, {"batch.micro", "64"}}},
           {minimal_deck, {{"batch.micro", "64"}, {"parallel.data", "3"}}},
           {minimal_deck + ramp, {{"batch.micro", "5"}}},
           {minimal_deck, {{"parallel.data", "1"}, {"parallel.sync_batch_norm", "2"}}},
           {minimal_deck + interleaved, {{"parallel.pipeline", "1"}}},
           {minimal_gpt_deck, {{"parallel.sequence", "true"}, {"parallel.tensor", "1"}}},
           {minimal_gpt_deck,
            {{"parallel.sequence", "true"},
             {"parallel.tensor", "2"},
             {"model.context", "7"},
             {"batch.global", "1"},
             {"batch.micro", "1"}}}}) {
    EXPECT_NE(error_of(deck, overrides), "") << *overrides.front().value;
    EXPECT_NO_THROW(parse(deck, "deck.toml", overrides, DeckPurpose::evaluation))
        << *overrides.front().value;
  }
}

TEST(DeckContradictions, PerplexityIsOfTokens) {
  EXPECT_TRUE(
      says(error_of(minimal_deck + "validation = \"v\"\n", {{"checkpoint.best", "perplexity"}}),
           "\"perplexity\" is measured for language models"));
}

TEST(DeckContradictions, TheNoiseScaleNeedsSeveralWholeGradients) {
  const std::string deck =
      minimal_deck + "[batch]\nglobal = 24\nmicro = 24\n[monitor]\nnoise_scale = \"9 steps\"\n";
  EXPECT_TRUE(error_of(deck).starts_with(
      "deck.toml:11:15: [monitor] noise_scale: \"9 steps\" compares micro-batches"));
  EXPECT_TRUE(says(error_of(deck), "use batch.micro = 12, or remove it"));
  EXPECT_EQ(error_of(deck, {{"batch.micro", "12"}}), "");
  EXPECT_TRUE(says(error_of(deck, {{"batch.global", "1"}, {"batch.micro", "1"}}),
                   "use batch.global = 2, or remove it"));
  const auto with = [&](const char* key, const char* value) {
    return error_of(deck, {{"batch.micro", "12"}, {key, value}});
  };
  for (const char* kind : {"gradients", "parameters"})
    EXPECT_TRUE(says(with("parallel.shard", kind), "use shard = \"optimizer\", or remove it"));
  EXPECT_EQ(with("parallel.shard", "optimizer"), "");
  for (const char* sync : {"delayed", "every 4 steps"})
    EXPECT_TRUE(says(with("parallel.sync", sync), "which only parallel.sync = \"step\" has"));
  EXPECT_TRUE(says(with("optimizer.clip_value", "0.1"), "use clip_norm, or remove it"));
  EXPECT_TRUE(says(error_of(deck, {{"batch.micro", "6"},
                                   {"parallel.data", "2"},
                                   {"parallel.sync_batch_norm", "true"}}),
                   "they depend on those of other ranks; use false"));
  const std::string ramp =
      "[batch]\nramp = [[\"0 epochs\", 8], [\"1 epoch\", 24]]\nmicro = 8\n"
      "[monitor]\nnoise_scale = \"9 steps\"\n";
  EXPECT_TRUE(says(error_of(minimal_deck + ramp), "in a row of batch.ramp a step is one"));
  EXPECT_EQ(error_of(minimal_deck + ramp, {{"batch.micro", "4"}}), "");
  // An evaluation measures nothing.
  EXPECT_NO_THROW(parse(deck, "deck.toml", {}, DeckPurpose::evaluation));
}

TEST(DeckContradictions, OthersAreFound) {
  EXPECT_TRUE(says(error_of(minimal_deck + "[optimizer]\nmomentum = 0\nnesterov = true\n"),
                   "needs a momentum"));
  EXPECT_TRUE(says(error_of(minimal_deck + "[optimizer]\nnesterov = true\n[schedule]\nkind = "
                                           "\"one-cycle\"\nmomentum = [0, 0]\n"),
                   "true needs a momentum, but schedule.momentum = [0, 0]"));
  EXPECT_TRUE(
      says(error_of(minimal_deck, {{"run.walltime", "4 minutes"}}),
           "walltime_margin: \"5 minutes\", its default, leaves no training time within walltime"));
}

TEST(DeckContradictions, AreNotJudgedOnKeysThatAreWrongByThemselves) {
  EXPECT_EQ(count_lines(error_of(minimal_deck + "[batch]\nglobal = -500\nmicro = 64\n")), 1);
}

}  // namespace
}  // namespace trireme::deck
