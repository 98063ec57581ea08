// SPDX-License-Identifier: Apache-2.0
//
// Writing of decks: they are read back to equal decks, and name every default.
#include <cmath>
#include <functional>
#include <random>
#include <string_view>

#include <fmt/format.h>

#include "support.hpp"
#include "support/models.hpp"
#include "trireme/model/loss.hpp"

namespace trireme::deck {
namespace {

using testing::HasSubstr;
using testing::Not;

model::TransformerOptions draw_gpt(const std::function<int(int)>& up_to) {
  model::TransformerOptions gpt;
  gpt.layers = 1 + up_to(10);
  gpt.kv_heads = 4 * (1 + up_to(2));
  gpt.heads = gpt.kv_heads * (1 + up_to(2));
  gpt.width = gpt.heads * 2 * (1 + up_to(30));
  gpt.mlp_width = 4 * (1 + up_to(1000));
  gpt.context = 4 * (1 + up_to(1000));
  if (up_to(1)) gpt.vocabulary = 2 + up_to(60000);
  gpt.mlp = static_cast<model::MlpKind>(up_to(1));
  gpt.norm = static_cast<model::NormKind>(up_to(1));
  gpt.positions = static_cast<model::PositionKind>(up_to(1));
  if (gpt.positions == model::PositionKind::rope) gpt.rope_base = 1 + 0.7 * up_to(1000000);
  gpt.norm_epsilon = 1e-7 * (1 + up_to(1000));
  gpt.bias = up_to(1);
  gpt.tie_embeddings = up_to(1);
  gpt.dropout = 0.01 * up_to(50);
  if (gpt.layers > 1) gpt.drop_path = 0.01 * up_to(50);
  return gpt;
}

model::ResnetOptions draw_resnet(const std::function<int(int)>& up_to, bool joined_norms) {
  model::ResnetOptions resnet;
  resnet.depth = std::vector<int>{8, 20, 50, 152}[static_cast<std::size_t>(up_to(3))];
  resnet.width = 1 + up_to(100);
  resnet.stem = static_cast<model::ResnetStem>(up_to(1));
  if (!joined_norms) resnet.norm = static_cast<model::ImageNormKind>(up_to(1));
  resnet.zero_init_residual = up_to(1);
  if (!joined_norms) resnet.drop_path = 0.01 * up_to(50);
  return resnet;
}

parallel::ParallelOptions draw_parallel(const std::function<int(int)>& up_to, bool gpt) {
  parallel::ParallelOptions parallel;
  if (gpt) parallel.tensor = 1 << up_to(2);
  parallel.sequence = parallel.tensor > 1 && up_to(1);
  parallel.pipeline = 1 + up_to(5);
  parallel.pipeline_schedule =
      static_cast<parallel::PipelineKind>(up_to(parallel.pipeline > 1 ? 2 : 1));
  if (parallel.pipeline_schedule == parallel::PipelineKind::interleaved)
    parallel.pipeline_chunks = 2 + up_to(3);
  parallel.shard = static_cast<parallel::ShardKind>(up_to(3));
  parallel.recompute = up_to(3);
  return parallel;
}

/// Draws a model of any family, the layout, and the keys that depend on the family.
void draw_model(Deck& deck, const std::function<int(int)>& up_to) {
  const std::vector<test::SmallModel> models = test::small_models();
  deck.model = models[static_cast<std::size_t>(up_to(static_cast<int>(models.size()) - 1))].options;
  const model::Family& family = family_of(deck.model);
  deck.parallel = draw_parallel(up_to, family.splits_by_tensor());
  const std::string_view word = family.word;
  if (word == "gpt") {
    deck.model = test::model_of(draw_gpt(up_to));
    if (deck.parallel.tensor == 1) deck.debug.fused_softmax = up_to(1);
  } else if (word == "mlp") {
    for (int i = up_to(3); i > 0; --i)
      deck.model.as<model::MlpOptions>().widths.push_back(1 + up_to(1000));
  } else if (word == "resnet") {
    deck.debug.joined_norms = up_to(1);
    deck.model = test::model_of(draw_resnet(up_to, deck.debug.joined_norms));
    if (!family.missing_batch_norm(deck.model) && !deck.debug.joined_norms)
      deck.parallel.sync_batch_norm =
          std::vector<int>{0, -1, 2, 8}[static_cast<std::size_t>(up_to(3))];
  }
}

/// Draws targets that are maps, and removes what cannot be combined with them.
void draw_map(Deck& deck, const std::function<int(int)>& up_to) {
  deck.target = {};
  if (up_to(1)) {
    deck.target.kind = AnswerKind::field;
    deck.target.mean = {1};
    deck.target.std = {2};
  } else {
    deck.target.kind = AnswerKind::pixels;
    deck.target.classes = 2 + up_to(9);
  }
  if (up_to(1)) deck.target.ignore = 255 - up_to(1);
  deck.loss.kind = &model::default_loss(deck.target.kind);
  if (up_to(1)) deck.data.hdf5.target_layout = "cwh";
  data::AugmentOptions moved;
  moved.random_crop = deck.data.augment.random_crop;
  moved.flip = deck.data.augment.flip;
  deck.data.augment = moved;
  deck.data.decode = data::Decoding::exact;
  deck.optimizer.clip_value = 0;
  deck.parallel.sync = parallel::SyncKind::step;
}

/// Draws the kind of schedule and the keys that belong to it.
void draw_schedule_kind(Deck& deck, const std::function<double()>& unit,
                        const std::function<int(int)>& up_to) {
  using optim::ScheduleKind;
  optim::ScheduleOptions& schedule = deck.schedule;
  schedule.kind = static_cast<ScheduleKind>(up_to(7));
  if (schedule.kind == ScheduleKind::plateau && deck.data.validation.empty())
    schedule.kind = ScheduleKind::constant;
  if (schedule.kind == ScheduleKind::one_cycle) schedule.warmup.reset();
  if (schedule.warmup || schedule.kind == ScheduleKind::one_cycle) schedule.start_ratio = unit();
  schedule.min_ratio = unit();
  schedule.gamma = unit();
  schedule.power = 3 * unit();
  if (up_to(1))
    schedule.milestones = {{5 + unit(), Duration::Unit::epochs}, {90, Duration::Unit::steps}};
  else
    schedule.every = Duration{1 + unit(), Duration::Unit::epochs};
  if (schedule.kind == ScheduleKind::exponential)
    schedule.every = Duration{1 + unit(), Duration::Unit::epochs};
  schedule.period = {1 + unit(), Duration::Unit::epochs};
  schedule.period_factor = 1 + unit();
  schedule.peak_at = unit();
  schedule.momentum_range = {0.5 * unit(), 0.5 + 0.49 * unit()};
  schedule.plateau = {.metric = up_to(1) ? "loss" : std::string(answer_of(deck).metrics.back()),
                      .threshold = unit(),
                      .factor = unit(),
                      .patience = up_to(20),
                      .cooldown = up_to(20)};
}

/// Returns a random valid deck.
Deck draw(std::mt19937& random) {
  const auto up_to = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n + 1));
  };
  const auto unit = [&] { return std::uniform_real_distribution<double>(1e-9, 1)(random); };
  const auto counted = [&] {
    return Duration{unit() * 1000, static_cast<Duration::Unit>(up_to(2))};
  };
  Deck deck;
  deck.run.name = fmt::format("run{}", up_to(1000));
  deck.run.folder = fmt::format("a \"quoted\"\\folder\n{}", deck.run.name);
  deck.run.seed = random();
  deck.run.device = static_cast<DeviceChoice>(up_to(2));
  deck.debug.device = static_cast<DebugDevice>(up_to(1));
  deck.run.deterministic = up_to(1);
  if (deck.run.device != DeviceChoice::cpu) deck.run.graphs = up_to(1);
  deck.debug.fusions = up_to(1);
  deck.run.walltime_auto = up_to(1);
  if (!deck.run.walltime_auto && up_to(1))
    deck.run.walltime = Duration{3600 + unit() * 1e5, Duration::Unit::seconds};
  draw_model(deck, up_to);
  const bool is_text = takes_tokens(deck.model);
  deck.data.train = "data/train";
  if (up_to(1)) deck.data.validation = "data/validation";
  if (up_to(1)) deck.data.test = "data/test";
  deck.data.shuffle = static_cast<data::Shuffle>(up_to(2));
  if (deck.data.shuffle == data::Shuffle::blocks) deck.data.shuffle_block = 1 + up_to(100);
  deck.data.workers = up_to(10);
  deck.data.verify = unit();
  deck.data.drop_last = up_to(1);
  for (int i = is_text ? 0 : up_to(3); i > 0; --i) {
    deck.data.augment.mean.push_back(unit());
    deck.data.augment.std.push_back(unit());
  }
  if (!is_text && up_to(1)) deck.data.augment.random_crop = up_to(8);
  if (!is_text && deck.data.augment.random_crop == 0 && up_to(1))
    deck.data.augment.random_resized_crop = {.size = 1 + up_to(300),
                                             .scale = {0.01 + unit() / 4, 0.5 + unit() / 2},
                                             .ratio = {0.1 + unit(), 1.5 + unit()}};
  if (deck.data.augment.random_resized_crop.size > 0)
    deck.data.decode = static_cast<data::Decoding>(up_to(1));
  if (!is_text && up_to(1)) {
    const std::int64_t trained = deck.data.augment.random_resized_crop.size;
    deck.data.augment.evaluate.crop = trained > 0 ? trained : 1 + up_to(300);
    deck.data.augment.evaluate.resize = deck.data.augment.evaluate.crop + up_to(50);
  }
  if (!is_text && up_to(1)) deck.data.augment.color_jitter = {unit(), 2 * unit(), 0, unit() / 2};
  if (!is_text && up_to(1))
    deck.data.augment.rand_augment = {.count = 1 + up_to(15), .magnitude = up_to(30)};
  if (!is_text && up_to(1))
    deck.data.augment.erase = {.probability = 0.01 + unit() / 2,
                               .scale = {0.01 + unit() / 4, 0.5 + unit() / 2},
                               .ratio = {0.1 + unit(), 1.5 + unit()}};
  if (!is_text && up_to(1)) deck.data.augment.mixing.mixup = 0.01 + unit();
  if (!is_text && up_to(1)) deck.data.augment.mixing.cutmix = 0.01 + unit();
  deck.loss.label_smoothing = unit() * 0.5;
  deck.batch.micro = 1 + up_to(100);
  if (deck.data.augment.mixing.is_on()) deck.batch.micro *= 2;
  deck.batch.global = deck.batch.micro * (1 + up_to(10));
  if (deck.parallel.sync == parallel::SyncKind::step && up_to(2) == 0)
    deck.batch.ramp = {{{0, Duration::Unit::epochs}, deck.batch.global},
                       {{unit(), Duration::Unit::epochs}, deck.batch.global + deck.batch.micro}};
  deck.precision.compute = up_to(2) == 0                          ? ComputePrecision::float16
                           : up_to(1)                             ? ComputePrecision::bfloat16
                           : deck.run.device == DeviceChoice::cpu ? ComputePrecision::float32
                                                                  : ComputePrecision::tfloat32;
  if (deck.precision.compute == ComputePrecision::float16)
    deck.precision.loss_scale = {std::ldexp(1.0, up_to(24)), 4, std::ldexp(1.0, -1 - up_to(3)),
                                 1 + up_to(100)};
  deck.optimizer.rule =
      optim::rules()[static_cast<std::size_t>(up_to(static_cast<int>(optim::rules().size()) - 1))];
  const optim::UpdateRule& rule = *deck.optimizer.rule;
  deck.optimizer.weight_decay = up_to(1) ? unit() * 1e-4 : 0;
  deck.optimizer.decay_all = deck.optimizer.weight_decay > 0 && up_to(1);
  deck.optimizer.clip_value = up_to(1) ? unit() : 0;
  deck.optimizer.clip_norm = up_to(1) ? unit() : 0;
  deck.optimizer.ema = up_to(1) ? unit() : 0;
  if (rule.has_key("epsilon")) deck.optimizer.epsilon = unit() * 1e-8;
  if (rule.has_key("momentum")) deck.optimizer.momentum = unit() * 0.99;
  if (rule.has_key("nesterov")) deck.optimizer.nesterov = up_to(1);
  if (rule.has_key("newton_schulz"))
    deck.optimizer.newton_schulz = up_to(1) ? DType::float32 : DType::bfloat16;
  if (rule.has_key("scale"))
    deck.optimizer.scale = up_to(1) ? optim::MatrixScale::adamw : optim::MatrixScale::original;
  for (int i = up_to(3); i > 0; --i) {
    optim::ParameterGroup& group = deck.optimizer.groups.emplace_back();
    group.match = "a\"\\.*" + std::to_string(i);
    group.frozen = up_to(2) == 0;
    if (group.frozen) continue;
    group.rate_ratio = up_to(1) ? 1 : 10 * unit() + 1e-3;
    if (up_to(1)) group.decay = unit();
    if (rule.scope == optim::RuleScope::matrix && up_to(1)) group.rule = rule.rule_of_others;
    if (rule.trust == nullptr) continue;
    group.trust = up_to(1);
    if (group.trust && up_to(1)) group.trust_max = unit() + 1e-3;
  }
  deck.schedule.rate = unit();
  deck.schedule.scaling = static_cast<optim::RateScaling>(up_to(2));
  if (deck.schedule.scaling != optim::RateScaling::none) deck.schedule.base_batch = 1 + up_to(1000);
  if (up_to(1)) deck.schedule.length = Duration{100 + unit(), Duration::Unit::epochs};
  if (up_to(1)) deck.schedule.warmup = Duration{unit(), Duration::Unit::epochs};
  if (!is_text && up_to(1)) {
    deck.data.hdf5 = {.input = {"/a \"b\""}, .target = {"y"}, .layout = "chw"};
    if (up_to(1)) deck.data.hdf5.input.push_back("/c");
    deck.data.verify = 0;
    deck.data.hdf5.samples = static_cast<data::ArrayForm::Samples>(up_to(1));
    deck.data.hdf5.transform = static_cast<data::ArrayForm::Transform>(up_to(1));
    if (up_to(1)) deck.data.hdf5.fill = unit();
    if (up_to(1)) {
      deck.target.kind = AnswerKind::classes;
      if (up_to(1)) deck.target = {.kind = AnswerKind::values, .mean = {0.5, -2}, .std = {1, 3}};
      const std::span<const model::LossKind> losses = model::losses();
      do deck.loss.kind = &losses[random() % losses.size()];
      while (!deck.loss.kind->takes(deck.target.kind));
      if (deck.loss.kind->has_delta) deck.loss.delta = unit();
      deck.data.augment.mixing.cutmix = 0;
    } else if (family_of(deck.model).makes_maps()) {
      draw_map(deck, up_to);
    }
  }
  if (model::loss_of(deck.loss, answer_of(deck).kind).has_label_smoothing && !is_text &&
      deck.optimizer.clip_value == 0 && deck.parallel.sync == parallel::SyncKind::step &&
      !deck.data.augment.mixing.is_on() && up_to(1)) {
    deck.loss.label_smoothing = 0;
    for (std::int64_t i = std::max<std::int64_t>(2, deck.target.classes); i > 0; --i)
      deck.loss.class_weights.push_back(1 + up_to(3));
  }
  draw_schedule_kind(deck, unit, up_to);
  deck.run.stop = up_to(1) && deck.schedule.length
                      ? Duration{60.0 * (1 + up_to(1000)), Duration::Unit::seconds}
                      : Duration{1 + unit() * 100, Duration::Unit::epochs};
  if (is_text && up_to(1)) deck.run.stop = {1e6 * (1 + up_to(1000)), Duration::Unit::tokens};
  deck.evaluate.every = counted();
  deck.data.samples = up_to(1) * up_to(1000);
  deck.checkpoint.every = counted();
  deck.checkpoint.keep = 1 + up_to(5);
  if (up_to(1)) deck.checkpoint.keep_every = counted();
  deck.checkpoint.asynchronous = up_to(1);
  if (!deck.data.validation.empty())
    deck.checkpoint.best = std::vector<std::string>{"", std::string(answer_of(deck).metrics[0]),
                                                    "loss"}[static_cast<std::size_t>(up_to(2))];
  deck.health.skip_nonfinite = up_to(1);
  if (deck.health.skip_nonfinite) deck.health.rollbacks = up_to(10);
  deck.monitor.every = counted();
  deck.monitor.tensorboard = up_to(1);
  if (up_to(1) && deck.batch.global > deck.batch.micro && deck.batch.ramp.empty() &&
      deck.optimizer.clip_value == 0 && deck.parallel.sync_batch_norm == 0 &&
      deck.parallel.shard < parallel::ShardKind::gradients &&
      deck.parallel.sync == parallel::SyncKind::step && !answer_of(deck).is_map &&
      deck.loss.class_weights.empty())
    deck.monitor.noise_scale = counted();
  if (up_to(1)) deck.monitor.tensors = counted();
  if (up_to(1)) deck.monitor.machine = "./some \"node\".toml";
  if (up_to(1)) deck.monitor.prometheus = "a \"b\".prom";
  if (up_to(1)) deck.monitor.trace = monitor::StepRange{1 + up_to(10), 11 + up_to(10)};
  return deck;
}

TEST(DeckWrite, IsReadBackToTheSameDeck) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Deck deck = draw(random);
    const std::string text = write(deck);
    ASSERT_EQ(error_of(text), "") << text;
    const Deck again = parse(text, "deck.toml");
    EXPECT_EQ(write(again), text);
    EXPECT_TRUE(differences(deck, again).empty());
    // Numbers keep all their bits, texts all their characters.
    if (std::string_view(family_of(deck.model).word) == "gpt") {
      const auto &read = again.model.as<model::TransformerOptions>(),
                 &drawn = deck.model.as<model::TransformerOptions>();
      EXPECT_EQ(read.drop_path, drawn.drop_path);
      EXPECT_EQ(read.dropout, drawn.dropout);
      EXPECT_EQ(read.rope_base, drawn.rope_base);
      EXPECT_EQ(read.norm_epsilon, drawn.norm_epsilon);
    }
    EXPECT_EQ(again.run.folder, deck.run.folder);
    EXPECT_EQ(again.run.graphs, deck.run.graphs);
    EXPECT_EQ(again.debug.fusions, deck.debug.fusions);
    EXPECT_EQ(again.debug.fused_softmax, deck.debug.fused_softmax);
    EXPECT_EQ(again.debug.joined_norms, deck.debug.joined_norms);
    EXPECT_EQ(again.batch.global, deck.batch.global);
    EXPECT_EQ(again.batch.ramp, deck.batch.ramp);
    EXPECT_EQ(again.schedule.rate, deck.schedule.rate);
    EXPECT_EQ(again.schedule.base_batch, deck.schedule.base_batch);
    EXPECT_EQ(again.schedule.kind, deck.schedule.kind);
    if (deck.schedule.kind == optim::ScheduleKind::step) {
      EXPECT_EQ(again.schedule.milestones, deck.schedule.milestones);
      EXPECT_EQ(again.schedule.every, deck.schedule.every);
    }
    if (deck.schedule.varies_momentum(*deck.optimizer.rule)) {
      EXPECT_EQ(again.schedule.momentum_range, deck.schedule.momentum_range);
      EXPECT_EQ(again.schedule.peak_at, deck.schedule.peak_at);
    }
    if (deck.schedule.kind == optim::ScheduleKind::plateau) {
      EXPECT_EQ(again.schedule.plateau.metric, deck.schedule.plateau.metric);
      EXPECT_EQ(again.schedule.plateau.factor, deck.schedule.plateau.factor);
    }
    EXPECT_EQ(again.optimizer.clip_value, deck.optimizer.clip_value);
    EXPECT_EQ(again.optimizer.groups, deck.optimizer.groups);
    EXPECT_EQ(again.health.rollbacks, deck.health.rollbacks);
    EXPECT_EQ(again.data.augment.mean, deck.data.augment.mean);
    EXPECT_EQ(again.data.augment.erase.probability, deck.data.augment.erase.probability);
    EXPECT_EQ(again.data.augment.erase.scale, deck.data.augment.erase.scale);
    EXPECT_EQ(again.data.augment.erase.ratio, deck.data.augment.erase.ratio);
    EXPECT_EQ(again.data.augment.mixing.mixup, deck.data.augment.mixing.mixup);
    EXPECT_EQ(again.data.augment.mixing.cutmix, deck.data.augment.mixing.cutmix);
    EXPECT_EQ(again.run.stop, deck.run.stop);
    EXPECT_EQ(again.run.walltime, deck.run.walltime);
    EXPECT_EQ(again.checkpoint.best, deck.checkpoint.best);
    EXPECT_EQ(again.checkpoint.keep_every, deck.checkpoint.keep_every);
    EXPECT_EQ(again.checkpoint.asynchronous, deck.checkpoint.asynchronous);
    EXPECT_EQ(again.parallel.recompute, deck.parallel.recompute);
    EXPECT_EQ(again.parallel.sync_batch_norm, deck.parallel.sync_batch_norm);
    EXPECT_EQ(again.monitor.noise_scale, deck.monitor.noise_scale);
    EXPECT_EQ(again.monitor.tensors, deck.monitor.tensors);
    EXPECT_EQ(again.monitor.trace, deck.monitor.trace);
    EXPECT_EQ(again.monitor.machine, deck.monitor.machine);
    EXPECT_EQ(again.monitor.prometheus, deck.monitor.prometheus);
  }
}

TEST(DeckWrite, NamesEveryDefault) {
  const std::string text = write(parse(minimal_mlp_deck, "deck.toml"));
  for (const char* line :
       {"folder = \"runs/test\"", "seed = 1", "walltime = \"auto\"",
        "walltime_margin = \"5 minutes\"", "graphs = true", "rollbacks = 3", "global = 256",
        "data = \"auto\"", "compute = \"float32\"", "momentum = 0.9", "scaling = \"none\"",
        "warmup = \"none\"", "keep = 3", "best = \"none\"", "tensorboard = true"})
    EXPECT_THAT(text, HasSubstr(line));
}

TEST(DeckWrite, NamesEveryDefaultOfAGpt) {
  const std::string text = write(parse(minimal_gpt_deck, "deck.toml"));
  for (const char* line : {"layers = 12", "kv_heads = 12", "mlp_width = 3072", "norm = \"layer\"",
                           "bias = true", "tensor = 1", "pipeline_schedule = \"1f1b\"",
                           "shard = \"none\"", "recompute = \"none\"", "trace = \"none\""})
    EXPECT_THAT(text, HasSubstr(line));
  for (const char* key : {"vocabulary", "depth", "stem", "flip", "data.augment"})
    EXPECT_THAT(text, Not(HasSubstr(key)));
}

TEST(DeckWrite, LeavesOutKeysOfOtherKinds) {
  const std::string text = write(parse(minimal_mlp_deck, "deck.toml"));
  for (const char* key :
       {"depth", "stem", "trust_coefficient", "beta1", "shuffle_block", "kv_heads", "\nnorm"})
    EXPECT_THAT(text, Not(HasSubstr(key)));
}

}  // namespace
}  // namespace trireme::deck
