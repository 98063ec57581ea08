// SPDX-License-Identifier: Apache-2.0
//
// The loader on images: the same global batches at every layout, restarts, reuse of buffers,
// errors.
#include "trireme/data/loader.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/images/image_operation.hpp"
#include "flip_bit.hpp"
#include "image_set.hpp"
#include "support/count_allocations.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/shards/dataset_index.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

constexpr std::int64_t samples = 103, global = 16;

struct LoaderTest : testing::Test {
  void SetUp() override { set.write(folder / "set", {50, 53}); }

  LoaderOptions training(std::int64_t micro, int rank, int size, int workers,
                         bool drop_last = true) const {
    LoaderOptions options;
    options.order = {.seed = 7, .samples = samples, .shuffle = Shuffle::full};
    options.batching = {.samples = samples, .global_batch = global, .drop_last = drop_last};
    options.augmentation = {.seed = 7,
                            .crop_padding = 2,
                            .flip = true,
                            .height = 3,
                            .width = 2,
                            .erase = {.probability = 0.5, .scale = {0.1, 0.4}},
                            .mixing = {.mixup = 0.4, .cutmix = 1}};
    options.micro = micro;
    options.data_rank = rank;
    options.data_size = size;
    options.workers = workers;
    options.prefetch = 3;
    return options;
  }

  struct Row {
    std::int64_t sample;
    std::int32_t label;
    std::vector<std::byte> image;
    int shift_row, shift_column, flip;
    std::vector<int> erased, pasted;
    float weight;
    bool operator==(const Row&) const = default;
  };
  static std::vector<int> extents_of(const ops::PixelRange& range) {
    return {range.top, range.bottom, range.left, range.right};
  }
  static std::vector<Row> rows_of(const MicroBatch& batch) {
    std::vector<Row> rows;
    const std::int64_t bytes = batch.inputs.bytes() / batch.inputs.shape[0];
    for (std::int64_t i = 0; i < batch.inputs.shape[0]; ++i) {
      const std::byte* image = batch.inputs.as<std::byte>() + i * bytes;
      rows.push_back({batch.samples[i],
                      batch.labels.as<std::int32_t>()[i],
                      {image, image + bytes},
                      batch.transforms[i].row,
                      batch.transforms[i].column,
                      batch.transforms[i].flip,
                      extents_of(batch.transforms[i].erased),
                      extents_of(batch.transforms[i].pasted),
                      batch.transforms[i].weight});
      if (batch.label_weights != nullptr) {
        EXPECT_EQ(batch.label_weights[i], batch.transforms[i].weight);
      }
    }
    return rows;
  }
  // Returns the global batches that `size` replicas see together, in order.
  std::vector<Row> steps(std::int64_t count, std::int64_t micro, int size, int workers,
                         Cursor from = {0, 0}, bool drop_last = true, int interleaved_ranks = 1) {
    const Dataset dataset(folder / "set");
    std::vector<std::unique_ptr<Loader>> replicas;
    for (int rank = 0; rank < size; ++rank) {
      LoaderOptions options = training(micro, rank, size, workers, drop_last);
      options.interleaved_ranks = interleaved_ranks;
      replicas.push_back(std::make_unique<Loader>(dataset, options));
      replicas.back()->start(from);
    }
    std::vector<Row> seen;
    Cursor cursor = from;
    const EpochBatching cutter{.samples = samples, .global_batch = global, .drop_last = drop_last};
    for (std::int64_t step = 0; step < count; ++step) {
      for (const auto& replica : replicas) {
        for (std::int64_t part = 0; part < global / (micro * size); ++part) {
          const MicroBatch& batch = replica->next();
          EXPECT_EQ(batch.valid_rows, micro);
          EXPECT_NE(batch.label_weights, nullptr);
          EXPECT_EQ(batch.step_start, cursor);
          for (Row& row : rows_of(batch)) seen.push_back(std::move(row));
        }
      }
      cursor = cutter.advance(cursor);
    }
    return seen;
  }

  test::ScratchFolder folder;
  const ImageSet set{samples};
};

TEST_F(LoaderTest, EveryLayoutSeesTheSameGlobalBatches) {
  const std::vector<Row> reference = steps(15, 16, 1, 1);  // 2.5 epochs
  for (const Row& row : reference) {
    EXPECT_EQ(row.label, set.labels[static_cast<std::size_t>(row.sample)]);
    EXPECT_TRUE(std::equal(row.image.begin(), row.image.end(), set.image(row.sample).begin()));
  }
  EXPECT_EQ(steps(15, 4, 1, 3), reference);
  EXPECT_EQ(steps(15, 8, 2, 2), reference);
  EXPECT_EQ(steps(15, 2, 4, 4), reference);
  std::set<std::int64_t> first_epoch;
  for (std::int64_t i = 0; i < samples / global * global; ++i)
    first_epoch.insert(reference[static_cast<std::size_t>(i)].sample);
  EXPECT_EQ(static_cast<std::int64_t>(first_epoch.size()), samples / global * global);
}

TEST_F(LoaderTest, InterleavedRanksHaveOneMicroBatchTogether) {
  constexpr std::int64_t micro = 2, parts = global / (micro * 4);
  static_assert(parts > 1);
  const std::vector<Row> reference = steps(3, micro, 1, 1),
                         seen = steps(3, micro, 4, 2, {0, 0}, true, 2);
  // Rows are seen rank by rank. Ranks 0 and 1 share the first half of a step.
  for (std::int64_t i = 0; i < std::ssize(seen); ++i) {
    const std::int64_t step = i / global, rank = i % global / (global / 4),
                       part = i % (global / 4) / micro, row = i % micro;
    const std::int64_t at =
        step * global + rank / 2 * (global / 2) + (2 * part + rank % 2) * micro + row;
    EXPECT_EQ(seen[static_cast<std::size_t>(i)], reference[static_cast<std::size_t>(at)]);
  }
}

TEST_F(LoaderTest, StepsPastTheEpochsEndGoOnInTheNextEpochsOrder) {
  const std::vector<Row> reference = steps(20, 16, 1, 2, {0, 0}, false);
  EXPECT_EQ(steps(20, 4, 2, 2, {0, 0}, false), reference);
  const SampleOrder order{.seed = 7, .samples = samples, .shuffle = Shuffle::full};
  for (std::int64_t i = 0; i < 20 * global; ++i)
    EXPECT_EQ(reference[static_cast<std::size_t>(i)].sample,
              order.sample_at(i / samples, i % samples));
}

TEST_F(LoaderTest, ARestartInsideAnEpochSeesTheSameRest) {
  const std::vector<Row> whole = steps(14, 8, 1, 2);
  const EpochBatching cutter{.samples = samples, .global_batch = global};
  Cursor cursor{0, 0};
  for (int step = 0; step < 9; ++step) cursor = cutter.advance(cursor);
  EXPECT_EQ(steps(5, 4, 2, 2, cursor), std::vector<Row>(whole.begin() + 9 * global, whole.end()));
}

/// The emulated device executes copies late. It throws if the source has changed since the copy was
/// enqueued.
TEST_F(LoaderTest, FillsABufferAgainOnlyWhenTheCopyFromItIsMade) {
  constexpr Device device{DeviceKind::emulated, 0};
  const std::vector<Row> reference = steps(15, 4, 1, 2);
  const Dataset dataset(folder / "set");
  LoaderOptions options = training(4, 0, 1, 2);
  options.device = device;
  const OwnedStream stream(device);
  Loader loader(dataset, options);
  const std::size_t bytes = 4 * reference.front().image.size(), batches = reference.size() / 4;
  const Allocation there(device, bytes * batches, "copies");
  // The loader is restarted while a copy is in progress.
  for (const std::size_t taken : {std::size_t{2}, batches}) {
    loader.start({0, 0});
    for (std::size_t index = 0; index < taken; ++index) {
      const MicroBatch& batch = loader.next();
      ASSERT_EQ(static_cast<std::size_t>(batch.inputs.bytes()), bytes);
      copy_bytes(stream, there.data() + index * bytes, batch.inputs.data, bytes);
      batch.copy_done->record(stream);
    }
  }
  std::vector<std::byte> came(there.bytes());
  copy_bytes(stream, came.data(), there.data(), came.size());
  for (std::size_t row = 0; row < reference.size(); ++row) {
    const std::vector<std::byte>& image = reference[row].image;
    ASSERT_TRUE(std::equal(image.begin(), image.end(),
                           came.begin() + static_cast<std::ptrdiff_t>(row * image.size())))
        << row;
  }
}

TEST_F(LoaderTest, MayBeStartedAgainAtAnyTime) {
  const Dataset dataset(folder / "set");
  Loader loader(dataset, training(8, 0, 1, 3));
  loader.start({0, 0});
  const std::vector<Row> first = rows_of(loader.next()), second = rows_of(loader.next());
  for (int round = 0; round < 50; ++round) {
    loader.start({0, 0});
    ASSERT_EQ(rows_of(loader.next()), first);
    if (round % 2 == 0) {
      ASSERT_EQ(rows_of(loader.next()), second);
    }
  }
}

TEST_F(LoaderTest, AugmentationIsAFunctionOfEpochAndSampleAndCoversItsRange) {
  const Augmentation augmentation{.seed = 7, .crop_padding = 2, .flip = true};
  std::map<int, int> shifts, flips;
  for (std::int64_t sample = 0; sample < 2000; ++sample) {
    const ops::ImageTransform a = augmentation.transform_of(3, sample),
                              b = augmentation.transform_of(3, sample);
    EXPECT_TRUE(a.row == b.row && a.column == b.column && a.flip == b.flip);
    ++shifts[a.row];
    ++flips[a.flip];
  }
  EXPECT_EQ(shifts.begin()->first, -2);
  EXPECT_EQ(shifts.rbegin()->first, 2);
  // Binomial: 400 +- 17.9 per shift, 1000 +- 22.4 flips; tolerance: five standard deviations.
  for (const auto& [shift, count] : shifts) EXPECT_NEAR(count, 400, 90) << shift;
  EXPECT_NEAR(flips[1], 1000, 112);
  const Augmentation none{.seed = 7};
  EXPECT_TRUE(none.transform_of(0, 5).row == 0 && none.transform_of(0, 5).flip == 0);
}

/// The last stage of a pipeline reads labels only, the first one images only.
TEST_F(LoaderTest, EveryStageOfAPipelineDrawsTheSameMix) {
  const Dataset dataset(folder / "set");
  LoaderOptions images = training(4, 0, 1, 2), labels = images;
  images.labels = labels.inputs = false;
  Loader first(dataset, images), last(dataset, labels);
  first.start({0, 0});
  last.start({0, 0});
  std::set<ops::Mix> mixes;
  int erased = 0;
  for (int i = 0; i < 40; ++i) {
    const MicroBatch &drawn = first.next(), &again = last.next();
    EXPECT_EQ(drawn.label_weights, nullptr);
    for (std::int64_t row = 0; row < 4; ++row) {
      EXPECT_EQ(drawn.transforms[row].weight, again.label_weights[row]);
      EXPECT_EQ(drawn.transforms[row].mix, drawn.transforms[row ^ 1].mix);
      mixes.insert(drawn.transforms[row].mix);
      erased += drawn.transforms[row].erased.bottom > 0;
    }
  }
  EXPECT_EQ(mixes, (std::set{ops::Mix::mixup, ops::Mix::cutmix}));
  EXPECT_GT(erased, 0);
}

TEST_F(LoaderTest, AnEvaluationIsNotAugmented) {
  const Dataset dataset(folder / "set");
  LoaderOptions options = training(5, 0, 1, 2);
  options.training = false;
  Loader loader(dataset, options);
  loader.start({0, 0});
  for (std::int64_t i = 0; i < loader.micro_batches_per_pass(); ++i) {
    const MicroBatch& batch = loader.next();
    EXPECT_EQ(batch.label_weights, nullptr);
    for (std::int64_t row = 0; row < 5; ++row) {
      const ops::ImageTransform& transform = batch.transforms[row];
      EXPECT_TRUE(transform.mix == ops::Mix::none && transform.erased.bottom == 0 &&
                  transform.weight == 1 && transform.row == 0 && transform.flip == 0);
    }
  }
}

TEST_F(LoaderTest, EvaluationCoversEachSampleOnceInOrder) {
  const Dataset dataset(folder / "set");
  for (const int size : {1, 2, 4}) {
    for (const std::int64_t micro : {1, 5, 16, 200}) {
      std::map<std::int64_t, int> counts;
      std::int64_t rounds = -1, valid = 0;
      for (int rank = 0; rank < size; ++rank) {
        LoaderOptions options = training(micro, rank, size, 2);
        options.training = false;
        Loader loader(dataset, options);
        EXPECT_TRUE(rounds < 0 || loader.micro_batches_per_pass() == rounds);
        rounds = loader.micro_batches_per_pass();
        for (int pass = 0; pass < 2; ++pass) {
          loader.start({0, 0});
          for (std::int64_t round = 0; round < rounds; ++round) {
            const MicroBatch& batch = loader.next();
            for (const Row& row : rows_of(batch)) {
              EXPECT_EQ(row.shift_row, 0);
              if (row.sample < 0) {
                EXPECT_EQ(row.label, -1);
                EXPECT_TRUE(std::all_of(row.image.begin(), row.image.end(),
                                        [](std::byte byte) { return byte == std::byte{0}; }));
              } else {
                ++counts[row.sample];
                EXPECT_EQ(row.label, set.labels[static_cast<std::size_t>(row.sample)]);
              }
            }
            if (pass == 0) valid += batch.valid_rows;
          }
        }
      }
      EXPECT_EQ(valid, samples);
      EXPECT_EQ(static_cast<std::int64_t>(counts.size()), samples);
      for (const auto& [sample, count] : counts) EXPECT_EQ(count, 2) << sample;
    }
  }
}

TEST_F(LoaderTest, ASteadyStepAllocatesNothing) {
  const Dataset dataset(folder / "set");
  Loader loader(dataset, training(4, 0, 1, 3));
  loader.start({0, 0});
  for (int i = 0; i < 10; ++i) loader.next();
  const std::int64_t before = allocations_so_far();
  std::int64_t sum = 0;
  for (int i = 0; i < 200; ++i) sum += loader.next().labels.as<std::int32_t>()[0];
  EXPECT_EQ(allocations_so_far(), before);
  EXPECT_GT(sum, 0);
}

TEST_F(LoaderTest, ColorsOfStoredImagesAllocateNothingEither) {
  ImageSet colored(3 * samples);  // as many bytes as `samples` images of 3 channels have
  colored.channels = 3;
  colored.write(folder / "colored", {50, 53});
  AugmentOptions augment;
  augment.random_crop = 1;
  augment.flip = true;
  augment.color_jitter = {0.4, 0.4, 0.4, 0.1};
  augment.rand_augment = {.count = 2, .magnitude = 9};
  const Dataset dataset(folder / "colored", {0, ImagePipeline::training(augment, 7).form()});
  LoaderOptions options = training(4, 0, 1, 1);
  options.augmentation = {.seed = 7};
  Loader loader(dataset, options);
  loader.start({0, 0});
  std::vector<std::byte> scratch;
  double augment_seconds = 0, color_seconds = 0;
  for (int i = 0; i < 26; ++i) {  // more than an epoch
    const MicroBatch& batch = loader.next();
    augment_seconds += batch.times.augment;
    color_seconds += batch.times.colors;
    for (const Row& row : rows_of(batch)) {
      const std::span<const std::byte> stored = colored.image(row.sample);
      std::vector<std::byte> expected(stored.begin(), stored.end());
      augment_image(
          ImagePipeline::training(augment, 7).form().augmentation, 7, i < 24 ? 0 : 1, row.sample,
          {colored.height, colored.width, reinterpret_cast<std::uint8_t*>(expected.data())},
          scratch);
      EXPECT_EQ(row.image, expected) << "sample " << row.sample;
      EXPECT_TRUE(row.shift_row == 0 && row.shift_column == 0 && row.flip == 0);
    }
  }
  EXPECT_GT(augment_seconds, 0);
  EXPECT_EQ(color_seconds, augment_seconds) << "nothing is scaled";
  const std::int64_t before = allocations_so_far();
  for (int i = 0; i < 100; ++i) loader.next();
  EXPECT_EQ(allocations_so_far(), before);
}

/// Reads some epochs and returns the message of the first error; empty: there was none.
struct VerifyTest : LoaderTest {
  std::string error_of_epochs(int epochs, double share, bool with_checksums = true) {
    const Dataset dataset(index_dataset(folder / "set", {}, with_checksums));
    LoaderOptions options = training(8, 0, 1, 2, false);
    options.verify = share;
    Loader loader(dataset, options);
    loader.start({0, 0});
    return test::message_of<InputError>([&] {
      for (std::int64_t i = 0; i < epochs * samples / 8; ++i) loader.next();
    });
  }
  /// Changes one byte of a sample of the second shard.
  void damage(std::int64_t sample_in_shard) {
    const std::string shard = folder / "set/shard_00001.h5";
    const std::int64_t offset =
        io::index_own_hdf5(shard).dataset("images").offset + sample_in_shard * set.sample_bytes();
    flip_bit(shard, offset);
  }
};

TEST_F(VerifyTest, AChosenBlockIsComparedBeforeAnyOfItsSamplesIsReturned) {
  for (const int workers : {1, 4}) {
    for (std::int64_t damaged = 16; damaged < 32; damaged += 5) {
      damage(damaged);
      const Dataset dataset(index_dataset(folder / "set", {}, true));
      LoaderOptions options = training(2, 0, 1, workers, false);
      options.verify = 1;
      Loader loader(dataset, options);
      loader.start({0, 0});
      // Block 1 of the second shard.
      const std::int64_t first = dataset.info().shard_samples[0] + 16;
      std::int64_t returned = 0;
      const std::string message = test::message_of<InputError>([&] {
        for (; returned < samples / 2; ++returned) {
          const MicroBatch& batch = loader.next();
          for (int row = 0; row < 2; ++row)
            EXPECT_TRUE(batch.samples[row] < first || batch.samples[row] >= first + 16)
                << "sample " << batch.samples[row] << ", damaged " << damaged;
        }
      });
      EXPECT_THAT(message, HasSubstr("block 1 of /images and /labels"));
      EXPECT_LT(returned, samples / 2);
      damage(damaged);  // flips the bit back
    }
  }
}

TEST_F(VerifyTest, ABlockIsComparedOnceAnEpoch) {
  const Dataset dataset(index_dataset(folder / "set", {}, true));
  LoaderOptions options = training(2, 0, 1, 1, false);
  options.verify = 1;
  options.order.shuffle = Shuffle::none;
  options.prefetch = 1;
  Loader loader(dataset, options);
  loader.start({0, 0});
  const std::int64_t shard_begin = dataset.info().shard_samples[0];
  std::int64_t at = 0;
  for (; at < shard_begin + 18; at += 2) loader.next();
  damage(31);  // in block 1 of the second shard, which was compared
  for (; at < samples; at += 2) loader.next();
  const std::string message = test::message_of<InputError>([&] {
    for (at = 0; at < samples; at += 2) loader.next();
  });
  EXPECT_THAT(message, HasSubstr("block 1 of /images and /labels"));
  EXPECT_LE(at, shard_begin + 16);
}

TEST_F(VerifyTest, AChosenBlockThatDiffersEndsTheEpoch) {
  EXPECT_EQ(error_of_epochs(2, 1), "");
  damage(20);
  EXPECT_EQ(error_of_epochs(2, 0), "");
  const std::string message = error_of_epochs(1, 1);
  EXPECT_THAT(message, HasSubstr("shard_00001.h5: damaged: block 1 of /images and /labels "
                                 "(samples 16 to 31): checksum"));
}

TEST_F(VerifyTest, EveryEpochChoosesOtherBlocks) {
  damage(52);
  EXPECT_EQ(error_of_epochs(1, 0.05), "");
  EXPECT_THAT(error_of_epochs(100, 0.05), HasSubstr("shard_00001.h5: damaged: block 3"));
}

TEST_F(VerifyTest, AShardWithoutChecksumsCannotBeCompared) {
  ImageSetOptions options{
      .height = 3, .width = 2, .channels = 1, .classes = {}, .checksum_block = 0};
  write_image_shard(folder / "set/shard_00002.h5", options, set.image(0),
                    std::as_bytes(std::span(set.labels).first(1)));
  EXPECT_THAT([&] { index_dataset(folder / "set", {}, true); },
              ThrowsMessage<InputError>(
                  HasSubstr("shard_00002.h5: has no checksums, which data.verify compares")));
}

TEST_F(LoaderTest, AReadersErrorIsThrownByNextInItsPlace) {
  const Dataset dataset(folder / "set");
  const std::string shard = folder / "set/shard_00001.h5";
  // Truncated where its images begin, while it is open, as on a failing disk.
  std::vector<std::byte> image(static_cast<std::size_t>(dataset.sample().input_bytes()));
  dataset.read(dataset.info().samples - 1, image.data(), nullptr);
  const std::int64_t images = io::index_own_hdf5(shard).dataset("images").offset;
  std::filesystem::resize_file(shard, static_cast<std::uintmax_t>(images));
  LoaderOptions options = training(8, 0, 1, 2);
  options.training = false;
  Loader loader(dataset, options);
  loader.start({0, 0});
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(loader.next().valid_rows, 8);  // samples 0 to 47 are in the first shard
  EXPECT_THAT([&] { loader.next(); },
              ThrowsMessage<InputError>(
                  HasSubstr("shard_00001.h5: ends at byte " + std::to_string(images))));
  EXPECT_THROW(loader.next(), InputError);
}

TEST_F(LoaderTest, AShardThatWasChangedSinceTheStartIsRefused) {
  const Dataset dataset(folder / "set");
  const std::string shard = folder / "set/shard_00001.h5";
  std::filesystem::last_write_time(
      shard, std::filesystem::last_write_time(shard) + std::chrono::seconds(1));
  EXPECT_THAT(
      [&] {
        std::vector<std::byte> image(static_cast<std::size_t>(dataset.sample().input_bytes()));
        dataset.read(dataset.info().samples - 1, image.data(), nullptr);
      },
      ThrowsMessage<InputError>(
          HasSubstr("shard_00001.h5: was changed since the run read its structure")));
}

}  // namespace
}  // namespace trireme::data
