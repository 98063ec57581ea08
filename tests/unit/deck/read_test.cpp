#include "support.hpp"

#include "trireme/base/check.hpp"

namespace trireme::deck {
namespace {

using Unit = Duration::Unit;

// CONTRACT section 3: the defaults.
TEST(DeckRead, DefaultsAreTheContracts) {
  const Deck deck = parse(least, "deck.toml");
  EXPECT_EQ(deck.run.folder, "runs/test");
  EXPECT_EQ(deck.run.seed, 1u);
  EXPECT_EQ(deck.run.device, train::DeviceChoice::automatic);
  EXPECT_FALSE(deck.run.deterministic);
  EXPECT_EQ(deck.run.stop, (Duration{10, Unit::epochs}));
  EXPECT_TRUE(deck.run.walltime_auto);
  EXPECT_EQ(deck.run.walltime_margin, (Duration{300, Unit::seconds}));
  EXPECT_EQ(deck.model.kind, model::ModelKind::resnet);
  EXPECT_EQ(deck.model.width, 64);
  EXPECT_EQ(deck.model.stem, model::ResnetStem::imagenet);
  EXPECT_EQ(deck.data.shuffle, data::Shuffle::full);
  EXPECT_EQ(deck.data.workers, 2);
  EXPECT_EQ(deck.data.prefetch, 4);
  EXPECT_TRUE(deck.data.drop_last);
  EXPECT_TRUE(deck.data.augment.mean.empty());
  EXPECT_EQ(deck.loss.label_smoothing, 0);
  EXPECT_EQ(deck.batch.global, 256);
  EXPECT_EQ(deck.batch.micro, 64);
  EXPECT_EQ(deck.parallel.data, 0);
  EXPECT_EQ(deck.parallel.bucket_mb, 25);
  EXPECT_EQ(deck.precision.compute, DType::float32);
  EXPECT_EQ(deck.optimizer.kind, optim::OptimizerKind::sgd);
  EXPECT_EQ(deck.optimizer.weight_decay, 0);
  EXPECT_EQ(deck.optimizer.momentum, 0.9);
  EXPECT_EQ(deck.schedule.kind, optim::ScheduleKind::cosine);
  EXPECT_EQ(deck.schedule.rate, 0.1);
  EXPECT_EQ(deck.schedule.scaling, optim::RateScaling::none);
  EXPECT_FALSE(deck.schedule.warmup.has_value());
  EXPECT_EQ(deck.evaluate.every, (Duration{1, Unit::epochs}));
  EXPECT_EQ(deck.checkpoint.keep, 3);
  EXPECT_EQ(deck.checkpoint.best, "");
  EXPECT_EQ(deck.monitor.every, (Duration{10, Unit::steps}));
  EXPECT_TRUE(deck.monitor.tensorboard);
}

TEST(DeckRead, BestIsTop1WhereThereIsAValidationSet) {
  EXPECT_EQ(parse(least + "validation = \"there\"\n", "deck.toml").checkpoint.best, "top1");
  EXPECT_EQ(parse(least + "validation = \"there\"\n[checkpoint]\nbest = \"none\"\n", "deck.toml").checkpoint.best, "");
  EXPECT_EQ(parse(least + "[checkpoint]\nbest = \"none\"\n", "deck.toml").checkpoint.best, "");
}

TEST(DeckRead, EveryKindOfValue) {
  const Deck deck = parse(R"(
run = { name = "a.b_c-D9", stop = "2k steps", walltime = "8 hours", seed = 7, deterministic = true, device = "cpu" }
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
)", "deck.toml");
  EXPECT_EQ(deck.run.stop, (Duration{2000, Unit::steps}));
  EXPECT_FALSE(deck.run.walltime_auto);
  EXPECT_EQ(deck.run.walltime, (Duration{28800, Unit::seconds}));
  EXPECT_EQ(deck.model.widths, (std::vector<std::int64_t>{512, 256}));
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

// Keys of the contract that this version does not do are no mistakes where they say "off".
TEST(DeckRead, FeaturesThatAreNotThereMayBeOff) {
  EXPECT_EQ(complaint(least + R"([data.augment]
mixup = 0.0
cutmix = false
[parallel]
tensor = 1
pipeline = 1
pipeline_schedule = "1f1b"
pipeline_chunks = 1
shard = "none"
sequence = false
recompute = "none"
offload = []
sync = "step"
sync_batch_norm = false
[precision]
reduce = "float32"
[precision.loss_scale]
initial = 65536
[optimizer]
ema = 0.0
[evaluate]
subset = 0
[checkpoint]
async = false
[health]
skip_nonfinite = true
spike_ratio = 10
rollback_after = 5
[monitor]
profile = false
)"), "");
}

TEST(DeckRead, FilesThatCannotBeReadAreTheUsersMistake) {
  EXPECT_THROW(read_file("/nonexistent/deck.toml"), InputError);
  EXPECT_THROW(read_file("/"), InputError);
}

}  // namespace
}  // namespace trireme::deck
