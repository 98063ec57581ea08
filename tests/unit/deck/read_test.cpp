// SPDX-License-Identifier: Apache-2.0
//
// Defaults of the deck, and values of every kind.
#include "support.hpp"
#include "support/models.hpp"

#include "trireme/base/check.hpp"

namespace trireme::deck {
namespace {

using testing::HasSubstr;

using Unit = Duration::Unit;

// The defaults of docs/reference/deck.md.
TEST(DeckRead, DefaultsAreTheContracts) {
  const Deck deck = parse(minimal_deck, "deck.toml");
  EXPECT_EQ(deck.run.folder, "runs/test");
  EXPECT_EQ(deck.run.seed, 1u);
  EXPECT_EQ(deck.run.device, DeviceChoice::automatic);
  EXPECT_FALSE(deck.run.deterministic);
  EXPECT_EQ(deck.run.stop, (Duration{10, Unit::epochs}));
  EXPECT_TRUE(deck.run.walltime_auto);
  EXPECT_EQ(deck.run.walltime_margin, (Duration{300, Unit::seconds}));
  EXPECT_STREQ(family_of(deck.model).word, "resnet");
  EXPECT_EQ(deck.model.as<model::ResnetOptions>().width, 64);
  EXPECT_EQ(deck.model.as<model::ResnetOptions>().stem, model::ResnetStem::imagenet);
  EXPECT_EQ(deck.data.shuffle, data::Shuffle::full);
  EXPECT_EQ(deck.data.workers, 0) << "auto";
  EXPECT_EQ(deck.data.verify, 0);
  EXPECT_EQ(deck.data.prefetch, 4);
  EXPECT_TRUE(deck.data.drop_last);
  EXPECT_EQ(deck.data.decode, data::Decoding::exact);
  EXPECT_TRUE(deck.data.augment.mean.empty());
  EXPECT_EQ(deck.loss.label_smoothing, 0);
  EXPECT_EQ(deck.batch.global, 256);
  EXPECT_EQ(deck.batch.micro, 64);
  EXPECT_EQ(deck.parallel.data, 0);
  EXPECT_EQ(deck.parallel.tensor, 1);
  EXPECT_EQ(deck.parallel.pipeline, 1);
  EXPECT_EQ(deck.parallel.pipeline_schedule, parallel::PipelineKind::one_forward_one_backward);
  EXPECT_EQ(deck.parallel.pipeline_chunks, 1);
  EXPECT_EQ(deck.parallel.shard, parallel::ShardKind::none);
  EXPECT_FALSE(deck.parallel.sequence);
  EXPECT_EQ(deck.parallel.recompute, 0);
  EXPECT_EQ(deck.parallel.bucket_mb, 25);
  EXPECT_EQ(deck.precision.compute, ComputePrecision::float32);
  EXPECT_EQ(deck.optimizer.rule, &optim::rule("sgd"));
  EXPECT_EQ(deck.optimizer.weight_decay, 0);
  EXPECT_EQ(deck.optimizer.momentum, 0.9);
  EXPECT_EQ(deck.optimizer.clip_value, 0);
  EXPECT_TRUE(deck.optimizer.groups.empty());
  EXPECT_EQ(deck.model.as<model::ResnetOptions>().drop_path, 0);
  EXPECT_EQ(deck.schedule.kind, optim::ScheduleKind::cosine);
  EXPECT_EQ(deck.schedule.rate, 0.1);
  EXPECT_EQ(deck.schedule.scaling, optim::RateScaling::none);
  EXPECT_FALSE(deck.schedule.warmup.has_value());
  EXPECT_EQ(deck.evaluate.every, (Duration{1, Unit::epochs}));
  EXPECT_EQ(deck.checkpoint.keep, 3);
  EXPECT_EQ(deck.checkpoint.best, "");
  EXPECT_TRUE(deck.checkpoint.asynchronous);
  EXPECT_FALSE(deck.checkpoint.keep_every.has_value());
  EXPECT_EQ(deck.monitor.every, (Duration{10, Unit::steps}));
  EXPECT_TRUE(deck.monitor.tensorboard);
  EXPECT_FALSE(deck.monitor.noise_scale.has_value());
  EXPECT_FALSE(deck.monitor.tensors.has_value());
  EXPECT_FALSE(deck.monitor.trace.has_value());
  EXPECT_EQ(deck.monitor.machine, "");
}

/// Both forms of TOML for a list of tables.
TEST(DeckRead, GroupsOfWeights) {
  const Deck deck =
      parse(minimal_deck +
                "[optimizer]\nkind = \"sgd\"\n[[optimizer.groups]]\nmatch = \"fc.*\"\n"
                "rate_ratio = 10\n[[optimizer.groups]]\nmatch = \"*bias\"\ndecay = 0\n"
                "[[optimizer.groups]]\nmatch = \"*\"\nfrozen = true\n",
            "deck.toml");
  const std::vector<optim::ParameterGroup> expected = {{.match = "fc.*", .rate_ratio = 10},
                                                       {.match = "*bias", .decay = 0},
                                                       {.match = "*", .frozen = true}};
  EXPECT_EQ(deck.optimizer.groups, expected);
  const Deck set = parse(
      minimal_deck, "deck.toml",
      {{"optimizer.groups",
        "[{ match = \"fc.*\", rate_ratio = 1e1 }, { match = \"*bias\", decay = 0.0 }, { match = "
        "\"*\", frozen = true }]"}});
  EXPECT_EQ(set.optimizer.groups, expected);
  EXPECT_THAT(write(set),
              HasSubstr("groups = [{ match = \"fc.*\", rate_ratio = 10.0 }, { match = "
                        "\"*bias\", rate_ratio = 1.0, decay = 0.0 }, { match = \"*\", frozen = "
                        "true }]\n"));
}

model::TransformerOptions gpt_of(const std::string& keys) {
  return parse("[run]\nname = \"test\"\n[model]\nkind = \"gpt\"\n" + keys +
                   "[data]\ntrain = \"somewhere\"\n",
               "deck.toml")
      .model.as<model::TransformerOptions>();
}

// docs/reference/deck.md: kv_heads = heads, mlp_width = 4 width, bias in GPT-2's form.
TEST(DeckRead, AGptIsGpt2sWhereTheDeckSaysNothing) {
  const model::TransformerOptions gpt = gpt_of("");
  EXPECT_EQ(gpt.layers, 12);
  EXPECT_EQ(gpt.heads, 12);
  EXPECT_EQ(gpt.kv_heads, 12);
  EXPECT_EQ(gpt.width, 768);
  EXPECT_EQ(gpt.mlp_width, 3072);
  EXPECT_EQ(gpt.context, 1024);
  EXPECT_EQ(gpt.vocabulary, 0);  // defined by the data
  EXPECT_EQ(gpt.mlp, model::MlpKind::gelu);
  EXPECT_EQ(gpt.norm, model::NormKind::layer);
  EXPECT_EQ(gpt.positions, model::PositionKind::learned);
  EXPECT_EQ(gpt.rope_base, 10000);
  EXPECT_EQ(gpt.norm_epsilon, 1e-5);
  EXPECT_TRUE(gpt.bias);
  EXPECT_TRUE(gpt.tie_embeddings);
  EXPECT_EQ(gpt.dropout, 0);
}

TEST(DeckRead, AGptsDefaultsFollowItsOtherKeys) {
  EXPECT_EQ(gpt_of("heads = 4\n").kv_heads, 4);
  EXPECT_EQ(gpt_of("heads = 4\nkv_heads = 2\n").kv_heads, 2);
  EXPECT_EQ(gpt_of("width = 96\n").mlp_width, 384);
  // 8/3 width rounded up to a multiple of 64; Llama's 7B (Touvron et al. 2023) rounds up to 256,
  // hence 11008.
  EXPECT_EQ(gpt_of("mlp = \"swiglu\"\n").mlp_width, 2048);
  EXPECT_EQ(gpt_of("width = 96\nmlp = \"swiglu\"\n").mlp_width, 256);
  EXPECT_EQ(gpt_of("width = 4096\nheads = 32\nmlp = \"swiglu\"\n").mlp_width, 10944);
  EXPECT_EQ(gpt_of("width = 4096\nheads = 32\nmlp = \"swiglu\"\nmlp_width = 11008\n").mlp_width,
            11008);
  EXPECT_FALSE(gpt_of("positions = \"rope\"\n").bias);
  EXPECT_TRUE(gpt_of("positions = \"rope\"\nbias = true\n").bias);
  EXPECT_FALSE(gpt_of("bias = false\n").bias);
}

TEST(DeckRead, EveryKeyOfAGpt) {
  const model::TransformerOptions gpt = gpt_of(R"(layers = 3
heads = 6
kv_heads = 3
width = 48
mlp_width = 100
context = 32
vocabulary = 1000
mlp = "swiglu"
norm = "rms"
positions = "rope"
rope_base = 500000
norm_epsilon = 1e-6
bias = true
tie_embeddings = false
dropout = 0.1
)");
  EXPECT_EQ(gpt.layers, 3);
  EXPECT_EQ(gpt.heads, 6);
  EXPECT_EQ(gpt.kv_heads, 3);
  EXPECT_EQ(gpt.width, 48);
  EXPECT_EQ(gpt.mlp_width, 100);
  EXPECT_EQ(gpt.context, 32);
  EXPECT_EQ(gpt.vocabulary, 1000);
  EXPECT_EQ(gpt.mlp, model::MlpKind::swiglu);
  EXPECT_EQ(gpt.norm, model::NormKind::rms);
  EXPECT_EQ(gpt.positions, model::PositionKind::rope);
  EXPECT_EQ(gpt.rope_base, 500000);
  EXPECT_EQ(gpt.norm_epsilon, 1e-6);
  EXPECT_TRUE(gpt.bias);
  EXPECT_FALSE(gpt.tie_embeddings);
  EXPECT_EQ(gpt.dropout, 0.1);
}

TEST(DeckRead, TheLayout) {
  const Deck deck = parse(minimal_gpt_deck + R"([parallel]
tensor = 4
pipeline = 3
pipeline_schedule = "interleaved"
pipeline_chunks = 2
shard = "gradients"
sequence = true
recompute = "every 2"
)",
                          "deck.toml");
  EXPECT_EQ(deck.parallel.tensor, 4);
  EXPECT_EQ(deck.parallel.pipeline, 3);
  EXPECT_EQ(deck.parallel.pipeline_schedule, parallel::PipelineKind::interleaved);
  EXPECT_EQ(deck.parallel.pipeline_chunks, 2);
  EXPECT_EQ(deck.parallel.shard, parallel::ShardKind::gradients);
  EXPECT_TRUE(deck.parallel.sequence);
  EXPECT_EQ(deck.parallel.recompute, 2);
  EXPECT_EQ(
      parse(minimal_deck + "[parallel]\nrecompute = \"all\"\n", "deck.toml").parallel.recompute, 1);
  EXPECT_EQ(
      parse(minimal_deck + "[parallel]\nshard = \"parameters\"\n", "deck.toml").parallel.shard,
      parallel::ShardKind::parameters);
}

TEST(DeckRead, DurationsInTokensForTokens) {
  const Deck deck = parse(minimal_gpt_deck, "deck.toml",
                          {{"run.stop", "2B tokens"},
                           {"schedule.warmup", "1M tokens"},
                           {"monitor.every", "3k tokens"}});
  EXPECT_EQ(deck.run.stop, (Duration{2e9, Unit::tokens}));
  EXPECT_EQ(deck.schedule.warmup, (Duration{1e6, Unit::tokens}));
}

TEST(DeckRead, LambAndTheTrace) {
  const Deck deck = parse(minimal_deck +
                              "[optimizer]\nkind = \"lamb\"\nbeta2 = 0.95\nepsilon = "
                              "1e-6\n[monitor]\ntrace = \"10..12\"\n",
                          "deck.toml");
  EXPECT_EQ(deck.optimizer.rule, &optim::rule("lamb"));
  EXPECT_EQ(deck.optimizer.beta2, 0.95);
  EXPECT_EQ(deck.optimizer.epsilon, 1e-6);
  EXPECT_EQ(deck.monitor.trace, (monitor::StepRange{10, 12}));
  EXPECT_FALSE(
      parse(minimal_deck + "[monitor]\ntrace = \"none\"\n", "deck.toml").monitor.trace.has_value());
}

TEST(DeckRead, BestIsTheLossOfTokens) {
  EXPECT_EQ(parse(minimal_gpt_deck, "deck.toml").checkpoint.best, "");
  EXPECT_EQ(parse(minimal_gpt_deck + "validation = \"there\"\n", "deck.toml").checkpoint.best,
            "loss");
  EXPECT_EQ(
      parse(minimal_gpt_deck + "validation = \"there\"\n[checkpoint]\nbest = \"perplexity\"\n",
            "deck.toml")
          .checkpoint.best,
      "perplexity");
}

TEST(DeckRead, BestIsTop1WhereThereIsAValidationSet) {
  EXPECT_EQ(parse(minimal_deck + "validation = \"there\"\n", "deck.toml").checkpoint.best, "top1");
  EXPECT_EQ(
      parse(minimal_deck + "validation = \"there\"\n[checkpoint]\nbest = \"none\"\n", "deck.toml")
          .checkpoint.best,
      "");
  EXPECT_EQ(parse(minimal_deck + "[checkpoint]\nbest = \"none\"\n", "deck.toml").checkpoint.best,
            "");
}

TEST(DeckRead, EveryKindOfValue) {
  const Deck deck = parse(R"(
run = { name = "a.b_c-D9", stop = "2k steps", walltime = "8 hours", seed = 7, )"
                          R"(deterministic = true, device = "cpu" }
[model]
kind = "mlp"
widths = [512, 256]
[data]
train = "t"
validation = "v"
shuffle = "blocks"
shuffle_block = 64
[data.augment]
normalize = { mean = [0.5, 0], std = [1, 0.25] }
random_crop = { padding = 4 }
flip = true
[optimizer]
kind = "adamw"
beta2 = 0.95
weight_decay = 1
[schedule]
kind = "constant"
warmup = "10 steps"
[parallel]
data = 2
)",
                          "deck.toml");
  EXPECT_EQ(deck.run.stop, (Duration{2000, Unit::steps}));
  EXPECT_FALSE(deck.run.walltime_auto);
  EXPECT_EQ(deck.run.walltime, (Duration{28800, Unit::seconds}));
  EXPECT_EQ(deck.model.as<model::MlpOptions>().widths, (std::vector<std::int64_t>{512, 256}));
  EXPECT_EQ(deck.data.shuffle_block, 64);
  EXPECT_EQ(deck.data.augment.mean, (std::vector<double>{0.5, 0}));
  EXPECT_EQ(deck.data.augment.std, (std::vector<double>{1, 0.25}));
  EXPECT_EQ(deck.data.augment.random_crop, 4);
  EXPECT_TRUE(deck.data.augment.flip);
  EXPECT_EQ(deck.optimizer.beta2, 0.95);
  EXPECT_EQ(deck.optimizer.weight_decay, 1);
  EXPECT_EQ(deck.schedule.warmup, (Duration{10, Unit::steps}));
  EXPECT_EQ(deck.parallel.data, 2);
}

TEST(DeckRead, ARampBeginsWithTheSamplesOfItsFirstRow) {
  const std::string ramp = "[batch]\nramp = [[\"0 epochs\", 128], [\"5 epochs\", 512]]\n";
  EXPECT_EQ(parse(minimal_deck + ramp, "deck.toml").batch.global, 128);
}

TEST(DeckRead, ASubsetOfTheValidationSetDecidesNoBest) {
  const auto best = [](const char* subset) {
    return parse(minimal_deck + "validation = \"v\"\n", "deck.toml", {{"evaluate.subset", subset}})
        .checkpoint.best;
  };
  EXPECT_EQ(best("100"), "");
  EXPECT_EQ(best("0"), "top1");
}

TEST(DeckRead, GradientsAreReducedInFloat32ByDefault) {
  EXPECT_EQ(parse(minimal_deck, "deck.toml").precision.reduce, DType::float32);
  const Deck deck = parse(minimal_deck + "[precision]\nreduce = \"bfloat16\"\n", "deck.toml");
  EXPECT_EQ(deck.precision.reduce, DType::bfloat16);
  EXPECT_EQ(deck.precision.dtype(), DType::float32);
}

TEST(DeckRead, TheLossScaleOfFloat16) {
  const Deck deck = parse(minimal_deck +
                              "[precision]\ncompute = \"float16\"\n[precision.loss_scale]\ninitial "
                              "= 1024\nbackoff = 0.25\n",
                          "deck.toml");
  EXPECT_EQ(deck.precision.dtype(), DType::float16);
  EXPECT_EQ(deck.precision.loss_scale.initial, 1024);
  EXPECT_EQ(deck.precision.loss_scale.growth, 2);
  EXPECT_EQ(deck.precision.loss_scale.backoff, 0.25);
  EXPECT_EQ(deck.precision.loss_scale.interval, 2000);
}

TEST(DeckRead, CropsOfImages) {
  const auto augment_of = [](const std::string& text) {
    return parse(minimal_deck + "[data.augment]\n" + text, "deck.toml").data.augment;
  };
  const data::AugmentOptions full = augment_of(
      "random_resized_crop = { size = 64, scale = [0.25, 0.5], ratio = [1, 2] }\n"
      "evaluate = { resize = 72, crop = 64 }\n");
  EXPECT_EQ(full.random_resized_crop.size, 64);
  EXPECT_EQ(full.random_resized_crop.scale, (std::array<double, 2>{0.25, 0.5}));
  EXPECT_EQ(full.random_resized_crop.ratio, (std::array<double, 2>{1, 2}));
  EXPECT_EQ(full.evaluate.resize, 72);
  EXPECT_EQ(full.evaluate.crop, 64);
  const data::AugmentOptions defaults = augment_of("random_resized_crop = { size = 224 }\n");
  EXPECT_EQ(defaults.random_resized_crop.scale, (std::array<double, 2>{0.08, 1}));
  EXPECT_EQ(defaults.random_resized_crop.ratio, (std::array<double, 2>{3.0 / 4, 4.0 / 3}));
  const data::AugmentOptions mixed = augment_of(
      "erase = { probability = 0.25, scale = [0.1, 0.2], ratio = [1, 2] }\n"
      "mixup = 0.2\ncutmix = 1\n");
  EXPECT_EQ(mixed.erase.probability, 0.25);
  EXPECT_EQ(mixed.erase.scale, (std::array<double, 2>{0.1, 0.2}));
  EXPECT_EQ(mixed.erase.ratio, (std::array<double, 2>{1, 2}));
  EXPECT_EQ(mixed.mixing.mixup, 0.2);
  EXPECT_EQ(mixed.mixing.cutmix, 1);
  const data::AugmentOptions erased = augment_of("erase = {}\n");
  EXPECT_EQ(erased.erase.probability, 0.5);
  EXPECT_EQ(erased.erase.scale, (std::array<double, 2>{0.02, 0.33}));
  EXPECT_EQ(erased.erase.ratio, (std::array<double, 2>{0.3, 3.3}));
  for (const std::string off : {"false", "0", "0.0"}) {
    std::string text;
    for (const char* key : {"random_resized_crop", "evaluate", "erase", "mixup", "cutmix"})
      text += key + (" = " + off) + "\n";
    const data::AugmentOptions none = augment_of(text);
    EXPECT_EQ(none.random_resized_crop.size, 0);
    EXPECT_EQ(none.evaluate.crop, 0);
    EXPECT_EQ(none.erase.probability, 0);
    EXPECT_FALSE(none.mixing.is_on());
  }
}

TEST(DeckRead, ColorsOfImages) {
  const auto augment_of = [](const std::string& text) {
    return parse(minimal_deck + "[data.augment]\n" + text, "deck.toml").data.augment;
  };
  const data::AugmentOptions full = augment_of(
      "color_jitter = { brightness = 0.5, contrast = 1, saturation = 0.25, hue = 0.125 }\n"
      "rand_augment = { count = 3, magnitude = 0 }\n");
  EXPECT_EQ(full.color_jitter.brightness, 0.5);
  EXPECT_EQ(full.color_jitter.contrast, 1);
  EXPECT_EQ(full.color_jitter.saturation, 0.25);
  EXPECT_EQ(full.color_jitter.hue, 0.125);
  EXPECT_EQ(full.rand_augment.count, 3);
  EXPECT_EQ(full.rand_augment.magnitude, 0);
  EXPECT_TRUE(full.changes_colors());
  const data::AugmentOptions defaults = augment_of("rand_augment = {}\n");
  EXPECT_EQ(defaults.rand_augment.count, 2);
  EXPECT_EQ(defaults.rand_augment.magnitude, 9);
  EXPECT_FALSE(defaults.color_jitter.is_on());
  EXPECT_FALSE(augment_of("color_jitter = { hue = 0 }\n").changes_colors());
  EXPECT_TRUE(augment_of("color_jitter = { hue = 0.1 }\n").changes_colors());
  for (const char* off : {"false", "0"})
    EXPECT_FALSE(augment_of(std::string("color_jitter = ") + off + "\nrand_augment = " + off + "\n")
                     .changes_colors());
}

TEST(DeckRead, SyncBatchNormIsAFlagOrANumberOfRanks) {
  const auto ranks = [](const std::string& value) {
    return parse(minimal_deck + "[parallel]\nsync_batch_norm = " + value + "\n", "deck.toml")
        .parallel.sync_batch_norm;
  };
  EXPECT_EQ(parse(minimal_deck, "deck.toml").parallel.sync_batch_norm, 0);
  EXPECT_EQ(ranks("false"), 0);
  EXPECT_EQ(ranks("true"), parallel::ParallelOptions::all_data_ranks);
  EXPECT_EQ(ranks("4"), 4);
  EXPECT_EQ(parse(minimal_deck, "deck.toml", {{"parallel.sync_batch_norm", "2"}})
                .parallel.sync_batch_norm,
            2);
}

TEST(DeckRead, FeaturesMayBeOff) {
  EXPECT_EQ(error_of(minimal_deck + R"([parallel]
sync_batch_norm = false
[precision]
reduce = "float32"
[optimizer]
ema = 0.0
[health]
skip_nonfinite = true
spike_ratio = 10
rollback_after = 5
)"),
            "");
}

TEST(DeckRead, FolderOfSplitNamesTheKeyOfEachSplit) {
  EXPECT_EQ(folder_of_split("train"), &data::DataOptions::train);
  EXPECT_EQ(folder_of_split("validation"), &data::DataOptions::validation);
  EXPECT_EQ(folder_of_split("test"), &data::DataOptions::test);
  EXPECT_TRUE(folder_of_split("tests") == nullptr);
}

}  // namespace
}  // namespace trireme::deck
