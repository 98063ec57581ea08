// SPDX-License-Identifier: Apache-2.0
//
// Tests train::resolve_layout (train/layout.hpp): the mesh, steps and epochs that follow from a
// deck, a dataset and a number of ranks, and the messages for decks and datasets that do not fit.
#include "trireme/train/layout.hpp"
#include "trireme/train/datasets.hpp"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/models.hpp"
#include "trireme/base/check.hpp"
#include "trireme/model/family.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;

using parallel::PipelineKind;

data::DatasetInfo images(std::int64_t samples = 1000) {
  data::DatasetInfo info;
  info.samples = samples;
  info.height = info.width = 8;
  info.channels = 1;
  info.target.count = 10;
  return info;
}

data::DatasetInfo tokens(std::int64_t samples = 1000) {
  data::DatasetInfo info;
  info.kind = data::DatasetKind::tokens;
  info.samples = samples;
  info.context = 16;
  info.vocabulary = 256;
  info.tokens = samples * info.context + 1;
  return info;
}

/// The tables of a deck from which a layout is resolved. A small GPT of 4 layers: 5 blocks with the
/// embedding.
struct LayoutFixture {
  LayoutFixture() {
    batch = {.global = 24, .micro = 2};
    data.train = "somewhere";
    model = test::model_of(model::TransformerOptions{
        .layers = 4, .heads = 4, .width = 16, .context = 16, .kv_heads = 4, .mlp_width = 64});
  }
  ResolvedLayout resolve(int ranks, const data::DatasetInfo& train) const {
    return resolve_layout({run, batch, parallel, data, schedule, model}, train, ranks);
  }
  ResolvedLayout resolve(int ranks) const {
    return resolve(ranks, takes_tokens(model) ? tokens() : images());
  }
  std::string refusal(int ranks) const {
    return refusal_of([&] { resolve(ranks); });
  }
  template <class Body>
  static std::string refusal_of(Body&& body) {
    try {
      body();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  deck::RunOptions run;
  deck::BatchOptions batch;
  parallel::ParallelOptions parallel;
  data::DataOptions data;
  optim::ScheduleOptions schedule;
  model::ModelOptions model;
};

void expect_says(const std::string& message, const std::string& part) {
  EXPECT_THAT(message, HasSubstr(part));
}

TEST(Layout, DataRanksAreThoseLeftByTensorAndPipeline) {
  LayoutFixture options;
  options.parallel.tensor = 2;
  options.parallel.pipeline = 3;
  const ResolvedLayout layout = options.resolve(12);
  EXPECT_EQ(layout.data, 2);
  EXPECT_EQ(layout.tensor, 2);
  EXPECT_EQ(layout.pipeline, 3);
  EXPECT_EQ(layout.ranks(), 12);
  EXPECT_EQ(layout.accumulation, 6);  // 24 samples / (2 replicas x 2 samples).
  EXPECT_EQ(layout.samples_per_epoch, 984);
  EXPECT_EQ(layout.steps_per_epoch, 41);
}

TEST(Layout, LeastRanksAreTheFewestThatResolve) {
  LayoutFixture options;
  EXPECT_EQ(min_ranks(options.parallel), 1);
  options.parallel.tensor = 2;
  options.parallel.pipeline = 3;
  EXPECT_EQ(min_ranks(options.parallel), 6);
  EXPECT_EQ(options.resolve(6).data, 1);
  options.parallel.data = 2;
  EXPECT_EQ(min_ranks(options.parallel), 12);
  EXPECT_EQ(options.resolve(12).data, 2);
}

TEST(Layout, GroupsOfBatchNormDivideTheDataRanks) {
  LayoutFixture options;
  options.model = test::model_of(model::ResnetOptions{.depth = 8});
  EXPECT_EQ(options.resolve(4).batch_norm_ranks, 1);
  options.parallel.sync_batch_norm = parallel::ParallelOptions::all_data_ranks;
  EXPECT_EQ(options.resolve(4).batch_norm_ranks, 4);
  EXPECT_EQ(options.resolve(3).mesh_shape().batch_norm, 3);
  EXPECT_EQ(min_ranks(options.parallel), 2);
  expect_says(
      options.refusal(1),
      "parallel.sync_batch_norm = true joins the statistics of several data ranks, but here "
      "is 1 data rank; use sync_batch_norm = false, or more ranks");
  options.parallel.sync_batch_norm = 2;
  EXPECT_EQ(options.resolve(4).batch_norm_ranks, 2);
  expect_says(options.refusal(3),
              "parallel.sync_batch_norm = 2 does not divide 3 data ranks (every group has as many "
              "neighbors); use 3");
  options.parallel.sync_batch_norm = 3;
  options.parallel.pipeline = 2;
  EXPECT_EQ(min_ranks(options.parallel), 6);
  EXPECT_EQ(options.resolve(6).batch_norm_ranks, 3);
}

TEST(Layout, RanksThatDoNotDivideNameTheNearest) {
  LayoutFixture options;
  options.parallel.tensor = 2;
  options.parallel.pipeline = 2;
  expect_says(options.refusal(6),
              "parallel.tensor = 2: a replica of the model takes 4 ranks (tensor = 2 x pipeline = "
              "2), which do not divide the run's 6; start 4 or 8 ranks");
  expect_says(options.refusal(3), "start 4 ranks");
  EXPECT_EQ(options.refusal(4), "");
  EXPECT_EQ(options.refusal(8), "");
  options.parallel.tensor = 1;
  expect_says(options.refusal(5), "parallel.pipeline = 2: a replica of the model takes 2 ranks");
  options.parallel.data = 3;
  expect_says(
      options.refusal(4),
      "parallel.data = 3, tensor = 1, pipeline = 2 make 6 ranks, but the run has 4; start 6 ranks");
  EXPECT_EQ(options.refusal(6), "");
}

TEST(Layout, EveryReplicaNeedsWholeMicroBatches) {
  LayoutFixture options;
  expect_says(options.refusal(5),
              "batch.global = 24 is not divisible by batch.micro = 2 x 5 data ranks (each replica "
              "needs whole micro-batches); use batch.global = 20 or 30");
  options.batch.global = 20;
  EXPECT_EQ(options.resolve(5).accumulation, 2);
}

TEST(Layout, AnEpochWithoutIncompleteStepsHasAtLeastOneStep) {
  LayoutFixture options;
  options.data.drop_last = true;
  options.batch.global = 2 * tokens().samples;
  options.batch.micro = 1;
  expect_says(options.refusal(1), "fewer than batch.global = ");
  options.data.drop_last = false;
  EXPECT_EQ(options.refusal(1), "");
}

TEST(Layout, EveryChunkOfThePipelineNeedsABlock) {
  LayoutFixture options;  // An embedding and 4 layers.
  options.batch.global = 60;
  options.parallel.pipeline = 6;
  expect_says(options.refusal(6),
              "parallel.pipeline = 6 cuts the model into 6 parts (pipeline_chunks = 1), but it has "
              "only 5 blocks (the head goes with the last one); use "
              "parallel.pipeline = 5 or less");
  options.parallel.pipeline = 5;
  EXPECT_EQ(options.refusal(5), "");
  options.parallel.pipeline_schedule = PipelineKind::interleaved;
  options.parallel.pipeline = 3;
  options.parallel.pipeline_chunks = 2;
  expect_says(options.refusal(3),
              "cuts the model into 6 parts (pipeline_chunks = 2), but it has only 5 blocks (the "
              "head goes with the last one); use parallel.pipeline = 2 or less");
  options.parallel.pipeline = 2;
  EXPECT_EQ(options.refusal(2), "");
  options.parallel.pipeline_chunks = 3;
  expect_says(
      options.refusal(2),
      "use parallel.pipeline_schedule = \"1f1b\", pipeline_chunks = 1 and pipeline = 5 or less");
}

TEST(Layout, BlocksOfModelsOfImagesAreCountedToo) {
  LayoutFixture options;
  options.model = test::mlp({8, 8});
  options.parallel.pipeline = 3;
  expect_says(options.refusal(3), "but it has only 2 blocks");
  options.model = test::resnet(8, 4);  // A stem and three residual blocks.
  EXPECT_EQ(options.refusal(3), "");
  options.parallel.pipeline = 5;
  options.batch.global = 20;
  expect_says(options.refusal(5), "but it has only 4 blocks");
}

TEST(Layout, InterleavedStagesTakeMicroBatchesInGroups) {
  LayoutFixture options;
  options.parallel.pipeline = 2;
  options.parallel.pipeline_chunks = 2;
  options.parallel.pipeline_schedule = PipelineKind::interleaved;
  options.batch = {.global = 12, .micro = 2};
  expect_says(options.refusal(4),
              "batch.global = 12 makes 3 micro-batches a replica, which is not a multiple of "
              "parallel.pipeline = 2");
  expect_says(options.refusal(4), "use batch.global = 8 or 16, or pipeline_schedule = \"1f1b\"");
  options.batch.global = 16;
  EXPECT_EQ(options.refusal(4), "");
  options.batch.global = 12;
  EXPECT_EQ(options.refusal(2), "");  // One replica: 6 micro-batches.
}

TEST(Layout, TheRowsOfARampFollowEachOther) {
  LayoutFixture options;  // 1000 samples, micro-batches of 2
  options.run.stop = {3, Duration::Unit::epochs};
  options.data.drop_last = false;
  options.batch.ramp = {{{0, Duration::Unit::epochs}, 8},
                        {{1, Duration::Unit::epochs}, 24},
                        {{1500, Duration::Unit::samples}, 50}};
  options.batch.global = 8;
  const std::vector<ResolvedLayout> rows = resolve_rows(
      {options.run, options.batch, options.parallel, options.data, options.schedule, options.model},
      tokens(), 1);
  ASSERT_EQ(rows.size(), 3);
  // 125 steps of 8 are an epoch. 21 steps of 24 are the first at or past sample 1500: 1504.
  EXPECT_EQ(rows[0].row_begin, 0);
  EXPECT_EQ(rows[0].row_end, 125);
  EXPECT_EQ(rows[1].row_begin, 125);
  EXPECT_EQ(rows[1].row_end, 146);
  EXPECT_EQ(rows[2].row_begin, 146);
  EXPECT_EQ(rows[2].row_end, 0);
  EXPECT_EQ(rows[2].scale.samples_after(146), 1504);
  EXPECT_EQ(rows[0].accumulation, 4);
  EXPECT_EQ(rows[1].accumulation, 12);
  EXPECT_EQ(rows[2].accumulation, 25);
  // 1496 samples are left after sample 1504: 30 steps of 50.
  for (const ResolvedLayout& row : rows) EXPECT_EQ(row.total_steps, 176);
  EXPECT_EQ(options.resolve(1).global, 8);
  for (const auto& [steps_done, global] : {std::pair(0, 8), {124, 8}, {125, 24}, {146, 50}})
    EXPECT_EQ(resolve_layout({options.run, options.batch, options.parallel, options.data,
                              options.schedule, options.model},
                             tokens(), 1, steps_done)
                  .global,
              global);
}

TEST(Layout, EpochsOfARampCountTheSamplesThatWereTaken) {
  LayoutFixture options;
  options.run.stop = {4, Duration::Unit::epochs};
  options.data.drop_last = true;
  options.batch.ramp = {{{0, Duration::Unit::epochs}, 6},
                        {{1.5, Duration::Unit::epochs}, 48},
                        {{3, Duration::Unit::epochs}, 96}};
  const LayoutRequest request{options.run,  options.batch,    options.parallel,
                              options.data, options.schedule, options.model};
  // 10 steps of the largest batch: 960 of 1000 samples.
  std::int64_t samples = 0, steps = 0;
  data::Cursor cursor;
  for (const ResolvedLayout& row : resolve_rows(request, tokens(), 1)) {
    EXPECT_EQ(row.samples_per_epoch, 960);
    EXPECT_EQ(row.row_begin, steps);
    const std::int64_t end = row.row_end == 0 ? row.total_steps : row.row_end;
    for (; steps < end; ++steps) {
      cursor = row.batching.advance(cursor);
      samples += row.global;
      EXPECT_EQ(cursor.epoch * 960 + cursor.position, samples);
      EXPECT_EQ(row.scale.samples_after(steps + 1), samples);
    }
  }
  EXPECT_EQ(cursor, (data::Cursor{4, 0}));
}

TEST(Layout, EveryRowOfARampFitsTheRun) {
  LayoutFixture options;
  options.run.stop = {3, Duration::Unit::epochs};
  const auto ramp = [&](std::int64_t global, double epochs) {
    options.batch.ramp = {{{0, Duration::Unit::epochs}, 8},
                          {{epochs, Duration::Unit::epochs}, global}};
  };
  ramp(24, 1);
  EXPECT_EQ(options.refusal(4), "");
  ramp(20, 1);
  expect_says(
      options.refusal(4),
      "batch.ramp: its row of 20 samples: a step of 20 samples is not divisible by batch.micro "
      "= 2 x 4 data ranks");
  ramp(24, 3);
  expect_says(options.refusal(4),
              "batch.ramp: its row \"3 epochs\" begins after step 369, but run.stop = \"3 epochs\" "
              "ends the run after step 369; remove the row, or train longer");
  ramp(24, 0);
  expect_says(
      options.refusal(4),
      "batch.ramp: its row \"0 epochs\" begins after step 0, not later than the row before it");
  options.run.stop = {8, Duration::Unit::seconds};
  options.data.drop_last = false;
  options.schedule.kind = optim::ScheduleKind::constant;
  ramp(24, 1e12);
  EXPECT_EQ(options.refusal(4), "") << "10^15 samples";
  ramp(24, 1e13);
  expect_says(options.refusal(4),
              "batch.ramp: its row \"10000000000000 epochs\" begins after more "
              "than 2^53 samples");
  options.batch.ramp = {{{0, Duration::Unit::epochs}, 1 << 30},
                        {{1e15, Duration::Unit::steps}, 24}};
  expect_says(options.refusal(4), "batch.ramp: its row \"1000000000000000 steps\"");
  ramp(1 << 30, 1);
  expect_says(options.refusal(4),
              "batch.ramp: its row of 1073741824 samples: batch.micro = 2: a "
              "step of 1073741824 samples has 134217728 micro-batches");
  options.run.stop = {3, Duration::Unit::epochs};
  options.data.drop_last = true;
  ramp(1008, 1);
  expect_says(options.refusal(4), "fewer than the largest batch of batch.ramp = 1008");
}

TEST(Layout, TokensAreCountedBySequences) {
  LayoutFixture options;
  options.run.stop = {7681, Duration::Unit::tokens};  // A step is 24 sequences of 16 tokens.
  EXPECT_EQ(options.resolve(1).total_steps, 21);
  EXPECT_EQ(options.resolve(1).scale.tokens_per_sample, 16);
  options.model = test::mlp({8});
  expect_says(options.refusal(1),
              "run.stop = \"7681 tokens\": tokens count only for a token dataset");
}

TEST(Layout, AWarmUpLongerThanTheScheduleIsRefused) {
  LayoutFixture options;
  options.run.stop = {1, Duration::Unit::epochs};
  options.schedule.warmup = Duration{42, Duration::Unit::steps};
  expect_says(options.refusal(1),
              "schedule.warmup = \"42 steps\" is longer than the schedule of 41 steps (run.stop or "
              "schedule.length), so the full rate would never be reached; use \"41 steps\" or "
              "less");
  options.run.stop = {1, Duration::Unit::steps};
  options.schedule.warmup = Duration{25, Duration::Unit::samples};
  expect_says(options.refusal(1),
              "schedule.warmup = \"25 samples\" = 2 steps is longer than the schedule of 1 step");
}

std::string dataset_refusal(const model::ModelOptions& model, const data::DatasetInfo& info) {
  return LayoutFixture::refusal_of(
      [&] { validate_dataset(model, {}, info, "data.train", "somewhere"); });
}

TEST(LayoutDataset, IsOfTheModelsKind) {
  LayoutFixture options;
  EXPECT_EQ(dataset_refusal(options.model, tokens()), "");
  expect_says(dataset_refusal(options.model, images()),
              "data.train = \"somewhere\" holds images, but model.kind = \"gpt\" needs tokens");
  options.model = test::resnet();
  EXPECT_EQ(dataset_refusal(options.model, images()), "");
  expect_says(dataset_refusal(options.model, tokens()),
              "data.train = \"somewhere\" holds tokens, but model.kind = \"resnet\" needs images");
  for (const model::Family* family : model::families()) {
    options.model = model::ModelOptions(*family);
    const bool needs_images = family->input == SampleKind::image;
    expect_says(dataset_refusal(options.model, needs_images ? tokens() : images()),
                fmt::format("model.kind = \"{}\" needs", family->word));
  }
}

TEST(LayoutDataset, ColorsNeedRgbImages) {
  LayoutFixture options;
  options.model = test::resnet();
  const auto refusal = [&](const data::DataOptions& data, std::int64_t channels) {
    data::DatasetInfo info = images();
    info.channels = channels;
    return LayoutFixture::refusal_of(
        [&] { validate_dataset(options.model, data, info, "data.train", "somewhere"); });
  };
  data::DataOptions jitter, rand_augment;
  jitter.augment.color_jitter.hue = 0.1;
  rand_augment.augment.rand_augment.count = 1;
  for (const std::int64_t channels : {1, 4}) {
    EXPECT_EQ(refusal({}, channels), "");
    expect_says(
        refusal(jitter, channels),
        fmt::format("data.augment.color_jitter changes the colors of RGB images of uint8, but the "
                    "images of data.train = \"somewhere\" have {} channel",
                    channels));
    expect_says(refusal(rand_augment, channels), "data.augment.rand_augment changes the colors");
  }
  EXPECT_EQ(refusal(jitter, 3), "");
  EXPECT_EQ(refusal(rand_augment, 3), "");
}

TEST(LayoutDataset, OfPlainImagesIsNotDecoded) {
  LayoutFixture options;
  options.model = test::resnet();
  options.data.decode = data::Decoding::fast;
  data::DatasetInfo info = images();
  const auto refusal = [&](const char* key) {
    return LayoutFixture::refusal_of(
        [&] { validate_dataset(options.model, options.data, info, key, "somewhere"); });
  };
  expect_says(refusal("data.train"),
              "data.decode = \"fast\" decodes JPEG files at a lower resolution, but data.train = "
              "\"somewhere\" holds plain images, which are not decoded");
  EXPECT_EQ(refusal("data.validation"), "") << "an evaluation is exact";
  info.kind = data::DatasetKind::encoded_images;
  EXPECT_EQ(refusal("data.train"), "");
}

TEST(LayoutDataset, OfImagesTooLargeIsRefused) {
  LayoutFixture options;
  options.model = test::model_of(model::ResnetOptions{.depth = 8});
  data::DatasetInfo large = images();
  large.height = large.width = 1 << 15;
  EXPECT_EQ(dataset_refusal(options.model, large), "");
  large.width += 1;
  expect_says(dataset_refusal(options.model, large),
              "holds images of 32768 x 32769; a side can have 32768 pixels or less");
  large.width = 1 << 15;
  options.batch = {.global = 1, .micro = 1};
  EXPECT_EQ(LayoutFixture::refusal_of([&] { options.resolve(1, large); }), "");
  options.batch = {.global = 2, .micro = 2};
  expect_says(LayoutFixture::refusal_of([&] { options.resolve(1, large); }),
              "batch.micro = 2: with 1073741824 pixels a sample a micro-batch has more rows than a "
              "matrix product can count (2147483647); use 1 or less");
}

TEST(LayoutDataset, HasNoTokenBeyondTheModelsVocabulary) {
  LayoutFixture options;
  options.model.as<model::TransformerOptions>().vocabulary = 256;
  EXPECT_EQ(dataset_refusal(options.model, tokens()), "");
  options.model.as<model::TransformerOptions>().vocabulary = 320;
  EXPECT_EQ(dataset_refusal(options.model, tokens()), "");
  options.model.as<model::TransformerOptions>().vocabulary = 255;
  expect_says(dataset_refusal(options.model, tokens()),
              "model.vocabulary = 255 is less than that of data.train = \"somewhere\", 256");
  data::DatasetInfo endless = tokens();
  endless.vocabulary = std::int64_t{1} << 32;
  options.model.as<model::TransformerOptions>().vocabulary = 0;
  expect_says(dataset_refusal(options.model, endless),
              "data.train = \"somewhere\": tokens can be up to 4294967295, more than an embedding");
  expect_says(dataset_refusal(options.model, endless), "do not state their vocabulary");
}

TEST(LayoutDataset, OfValidationHasTheFormOfTheTrainingSet) {
  const auto refusal_of_validation_set = [](const data::DatasetInfo& other) {
    return LayoutFixture::refusal_of(
        [&] { validate_same_form(tokens(), other, "data.validation", "there"); });
  };
  data::DatasetInfo other = tokens(7);
  EXPECT_EQ(refusal_of_validation_set(other), "");
  other.vocabulary = 300;
  expect_says(refusal_of_validation_set(other),
              "data.validation = \"there\" has a vocabulary of 300, but data.train only of 256");
  expect_says(refusal_of_validation_set(images()),
              "data.validation = \"there\" holds images, but data.train tokens");
}

TEST(LayoutDataset, OfOtherChannelsHasARemedyThatFits) {
  LayoutFixture options;
  options.model = test::resnet();
  data::DatasetInfo train = images(), other = images();
  other.channels = 3;
  const auto refusal = [&] {
    return LayoutFixture::refusal_of([&] {
      validate_dataset(options.model, options.data, train, "data.train", "here");
      validate_dataset(options.model, options.data, other, "data.validation", "there");
      validate_same_form(train, other, "data.validation", "there");
    });
  };
  // Neither another size nor other numbers of normalize would help.
  const std::string expected =
      "data.validation = \"there\" has images of 3 channels, but data.train of 1; make both sets "
      "of "
      "gray or both of color images";
  EXPECT_EQ(refusal(), expected);
  options.data.augment.mean = options.data.augment.std = {0.5};
  EXPECT_EQ(refusal(), expected);
  other.kind = data::DatasetKind::encoded_images;
  EXPECT_EQ(refusal(),
            expected + " (encoded images, JPEG and PNG, are always read with 3 channels)");
  options.data.augment.mean = options.data.augment.std = {0.5, 0.5, 0.5};
  expect_says(refusal(),
              "data.augment.normalize has 3 channels, but the images of data.train = \"here\" have "
              "1; give 1 number in mean and in std, or one for all channels");
  std::swap(train, other);
  expect_says(refusal(),
              "data.validation = \"there\" has images of 1 channel, but data.train of 3;");
}

TEST(LayoutDataset, AMissingFolderIsNamedWithItsKey) {
  expect_says(LayoutFixture::refusal_of(
                  [] { open_dataset(comm::Communicator(), "data.train", "/nonexistent", 16); }),
              "data.train = \"/nonexistent\": no such folder");
  expect_says(LayoutFixture::refusal_of(
                  [] { open_dataset(comm::Communicator(), "data.train", "/nonexistent", 16); }),
              "check the deck without data (trireme check --assume)");
}

}  // namespace
}  // namespace trireme::train
