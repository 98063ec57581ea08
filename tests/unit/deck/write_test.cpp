#include <random>

#include <fmt/format.h>

#include "support.hpp"

namespace trireme::deck {
namespace {

/// A deck drawn at random from those that parse() takes.
Deck draw(std::mt19937& random) {
  const auto up_to = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n + 1)); };
  const auto unit = [&] { return std::uniform_real_distribution<double>(1e-9, 1)(random); };
  const auto counted = [&] { return Duration{unit() * 1000, static_cast<Duration::Unit>(up_to(2))}; };
  Deck deck;
  deck.run.name = fmt::format("run{}", up_to(1000));
  deck.run.folder = fmt::format("a \"quoted\"\\folder\n{}", deck.run.name);
  deck.run.seed = random();
  deck.run.device = static_cast<train::DeviceChoice>(up_to(2));
  deck.run.deterministic = up_to(1);
  deck.run.walltime_auto = up_to(1);
  if (!deck.run.walltime_auto && up_to(1)) deck.run.walltime = Duration{3600 + unit() * 1e5, Duration::Unit::seconds};
  deck.model.kind = static_cast<model::ModelKind>(up_to(1));
  if (deck.model.kind == model::ModelKind::mlp) {
    for (int i = up_to(3); i > 0; --i) deck.model.widths.push_back(1 + up_to(1000));
  } else {
    deck.model.depth = std::vector<int>{8, 20, 50, 152}[static_cast<std::size_t>(up_to(3))];
    deck.model.width = 1 + up_to(100);
    deck.model.stem = static_cast<model::ResnetStem>(up_to(1));
    deck.model.norm = static_cast<model::ResnetNorm>(up_to(1));
    deck.model.zero_init_residual = up_to(1);
  }
  deck.data.train = "data/train";
  if (up_to(1)) deck.data.validation = "data/validation";
  if (up_to(1)) deck.data.test = "data/test";
  deck.data.shuffle = static_cast<data::Shuffle>(up_to(2));
  if (deck.data.shuffle == data::Shuffle::blocks) deck.data.shuffle_block = 1 + up_to(100);
  deck.data.workers = 1 + up_to(10);
  deck.data.drop_last = up_to(1);
  for (int i = up_to(3); i > 0; --i) {
    deck.data.augment.mean.push_back(unit());
    deck.data.augment.std.push_back(unit());
  }
  deck.data.augment.random_crop = up_to(8);
  deck.loss.label_smoothing = unit() * 0.5;
  deck.batch.micro = 1 + up_to(100);
  deck.batch.global = deck.batch.micro * (1 + up_to(10));
  deck.precision.compute = up_to(1) ? DType::bfloat16 : DType::float32;
  deck.optimizer.kind = static_cast<optim::OptimizerKind>(up_to(2));
  deck.optimizer.weight_decay = unit() * 1e-4;
  deck.optimizer.clip_norm = up_to(1) ? unit() : 0;
  if (deck.optimizer.kind == optim::OptimizerKind::adamw) {
    deck.optimizer.epsilon = unit() * 1e-8;
  } else {
    deck.optimizer.momentum = unit() * 0.99;
    if (deck.optimizer.kind == optim::OptimizerKind::sgd) deck.optimizer.nesterov = up_to(1);
  }
  deck.schedule.kind = static_cast<optim::ScheduleKind>(up_to(1));
  deck.schedule.rate = unit();
  deck.schedule.scaling = static_cast<optim::RateScaling>(up_to(2));
  if (up_to(1)) deck.schedule.length = Duration{100 + unit(), Duration::Unit::epochs};
  if (up_to(1)) deck.schedule.warmup = Duration{unit(), Duration::Unit::epochs};
  deck.run.stop = up_to(1) && deck.schedule.length ? Duration{60.0 * (1 + up_to(1000)), Duration::Unit::seconds} : Duration{1 + unit() * 100, Duration::Unit::epochs};
  deck.evaluate.every = counted();
  deck.checkpoint.every = counted();
  deck.checkpoint.keep = 1 + up_to(5);
  if (!deck.data.validation.empty()) deck.checkpoint.best = std::vector<std::string>{"", "top1", "loss"}[static_cast<std::size_t>(up_to(2))];
  deck.monitor.every = counted();
  deck.monitor.tensorboard = up_to(1);
  return deck;
}

TEST(DeckWrite, IsReadBackToTheSameDeck) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    const Deck deck = draw(random);
    const std::string text = write(deck);
    ASSERT_EQ(complaint(text), "") << text;
    const Deck again = parse(text, "deck.toml");
    EXPECT_EQ(write(again), text);
    EXPECT_TRUE(differences(deck, again).empty());
    // Numbers come back with all their bits, texts with all their letters.
    EXPECT_EQ(again.run.folder, deck.run.folder);
    EXPECT_EQ(again.schedule.rate, deck.schedule.rate);
    EXPECT_EQ(again.data.augment.mean, deck.data.augment.mean);
    EXPECT_EQ(again.run.stop, deck.run.stop);
    EXPECT_EQ(again.run.walltime, deck.run.walltime);
    EXPECT_EQ(again.checkpoint.best, deck.checkpoint.best);
    EXPECT_EQ(again.model.widths, deck.model.widths);
  }
}

TEST(DeckWrite, NamesEveryDefault) {
  const std::string text = write(parse(least_mlp, "deck.toml"));
  for (const char* line : {"folder = \"runs/test\"", "seed = 1", "walltime = \"auto\"", "walltime_margin = \"5 minutes\"", "global = 256", "data = \"auto\"",
                           "compute = \"float32\"", "momentum = 0.9", "scaling = \"none\"", "warmup = \"none\"", "keep = 3", "best = \"none\"", "tensorboard = true"})
    EXPECT_NE(text.find(line), std::string::npos) << line << " is not in\n" << text;
}

TEST(DeckWrite, LeavesOutKeysOfOtherKinds) {
  const std::string text = write(parse(least_mlp, "deck.toml"));
  for (const char* key : {"depth", "stem", "trust_coefficient", "beta1", "shuffle_block"}) EXPECT_EQ(text.find(key), std::string::npos) << key;
}

}  // namespace
}  // namespace trireme::deck
