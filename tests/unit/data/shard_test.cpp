// SPDX-License-Identifier: Apache-2.0
//
// Shards of images: reading, identity, checksums, and refusal of wrong ones.
#include "trireme/data/shards/shard.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/shards/stored_rows.hpp"
#include "flip_bit.hpp"
#include "image_set.hpp"
#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/data/shards/verify.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::data {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using test::message_of;

TEST(Shard, SamplesComeBackInTheOrderOfTheShardsNames) {
  const test::ScratchFolder folder;
  const ImageSet set(41);
  set.write(folder / "set", {20, 0, 21}, {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"});
  const Dataset dataset(folder / "set");
  EXPECT_EQ(dataset.info().samples, 41);
  EXPECT_EQ(dataset.info().target.count, 5);
  EXPECT_EQ(dataset.info().classes.front(), "T-shirt/top");
  EXPECT_EQ(dataset.info().shard_samples, (std::vector<std::int64_t>{20, 0, 21}));
  EXPECT_EQ(dataset.sample().input_bytes(), set.sample_bytes());
  for (std::int64_t i = 0; i < 41; ++i) {
    std::vector<std::byte> image(static_cast<std::size_t>(set.sample_bytes()));
    std::int32_t label = -1;
    dataset.read(i, image.data(), &label);
    EXPECT_TRUE(std::equal(image.begin(), image.end(), set.image(i).begin())) << i;
    EXPECT_EQ(label, set.labels[static_cast<std::size_t>(i)]);
  }
}

TEST(Shard, ClassesAreCountedFromTheLabelsWhereTheyHaveNoNames) {
  const test::ScratchFolder folder;
  ImageSet set(30, 4);
  set.write(folder / "set", {30});
  EXPECT_EQ(Dataset(folder / "set").info().target.count,
            *std::max_element(set.labels.begin(), set.labels.end()) + 1);
}

TEST(Shard, TheIdentityIsOfNamesAndCounts) {
  const test::ScratchFolder folder;
  ImageSet(40).write(folder / "a", {20, 20});
  ImageSet(40, 3).write(folder / "b", {20, 20});
  ImageSet(40).write(folder / "c", {19, 21});
  EXPECT_EQ(Dataset(folder / "a").info().identity, Dataset(folder / "b").info().identity);
  EXPECT_NE(Dataset(folder / "a").info().identity, Dataset(folder / "c").info().identity);
}

TEST(Shard, TheSameInputGivesTheSameBytes) {
  const test::ScratchFolder folder;
  ImageSet(40).write(folder / "a", {40}, {"a", "b", "c", "d", "e"});
  // HDF5 can store times in seconds; a second file one second later must have the same bytes.
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  ImageSet(40).write(folder / "b", {40}, {"a", "b", "c", "d", "e"});
  EXPECT_EQ(io::read_text_file(folder / "a/shard_00000.h5"),
            io::read_text_file(folder / "b/shard_00000.h5"));
}

TEST(Shard, AnyFlippedBitOfASampleIsFoundAndItsBlockNamed) {
  const test::ScratchFolder folder;
  // With the head of the seal only, the checksums must find the bit.
  const auto verify = [](const std::string& path) {
    return verify_shard(io::index_hdf5(path));  // without the seal
  };
  const ImageSet set(40);
  set.write(folder.path(), {40});
  const std::string path = folder / "shard_00000.h5";
  EXPECT_EQ(verify(path), "");
  const auto [images, labels] = [&] {
    const io::Hdf5Index file = io::index_own_hdf5(path);
    return std::pair(file.dataset("images").offset, file.dataset("labels").offset);
  }();
  flip_bit(path, images + 39 * set.sample_bytes());
  EXPECT_THAT(verify(path), HasSubstr("block 2 of /images and /labels (samples 32 to 39)"));
  flip_bit(path, images + 39 * set.sample_bytes());
  flip_bit(path, labels + 17 * 4);
  EXPECT_THAT(verify(path), HasSubstr("samples 16 to 31"));
  flip_bit(path, labels + 17 * 4);
  EXPECT_EQ(verify(path), "");
}

TEST(Shard, IsDescribedInWords) {
  const test::ScratchFolder folder;
  ImageSet(40).write(folder.path(), {40}, {"a/b", "b", "c", "d", "e"});
  const ShardDescription shard = describe_shard(folder / "shard_00000.h5");
  EXPECT_EQ(shard.samples, 40);
  EXPECT_EQ(shard.height, 3);
  EXPECT_EQ(shard.storage, "contiguous");
  EXPECT_TRUE(shard.checksums);
  EXPECT_TRUE(shard.sealed);
  EXPECT_THAT(to_text(shard), HasSubstr("samples: 40"));
  EXPECT_THAT(to_text(shard), HasSubstr("a/b"));
}

TEST(Shard, LabelsThatAreNoClassesAreNotWritten) {
  const test::ScratchFolder folder;
  ImageSet set(10);
  const std::string message =
      message_of<InputError>([&] { set.write(folder.path(), {10}, {"only", "two"}); });
  EXPECT_THAT(message, HasSubstr("past the 2 classes"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Shard, FoldersWithoutShardsAndShardsThatDoNotFitAreRefused) {
  const test::ScratchFolder folder;
  EXPECT_THAT([&] { Dataset(folder / "none"); },
              ThrowsMessage<InputError>(HasSubstr("no such folder")));
  EXPECT_THAT([&] { Dataset(folder.path()); },
              ThrowsMessage<InputError>(HasSubstr("no *.h5 shard")));
  ImageSet(10).write(folder / "sizes", {10});
  EXPECT_THAT([&] { Dataset(folder / "sizes/shard_00000.h5"); },
              ThrowsMessage<InputError>(HasSubstr("it is a file; name the folder that holds it")));
  ImageSet other(0);
  other.height = 4;
  other.images.resize(8);
  other.labels = {0};
  other.write(folder / "other", {1});
  std::filesystem::copy(folder / "other/shard_00000.h5", folder / "sizes/shard_00001.h5");
  EXPECT_THAT([&] { Dataset(folder / "sizes"); },
              ThrowsMessage<InputError>(
                  HasSubstr("shard_00001.h5: images of 4 x 2 x 1 among images of 3 x 2 x 1")));
  ImageSet(10).write(folder / "classes", {10}, {"a", "b", "c", "d", "e"});
  ImageSet(10).write(folder / "renamed", {10}, {"a", "b", "c", "e", "d"});
  std::filesystem::copy(folder / "renamed/shard_00000.h5", folder / "classes/shard_00001.h5");
  EXPECT_THAT([&] { Dataset(folder / "classes"); },
              ThrowsMessage<InputError>(HasSubstr("/classes differs")));
}

TEST(RowCache, DropsTheOldestBlocksBeforeItReads) {
  RowCache cache(100);
  int reads = 0;
  std::int64_t live = 0;  // bytes of all blocks that exist
  // Reads a block unless it is cached. Returns the bytes that existed when the read began; -1: no
  // read.
  const auto live_before = [&](std::int64_t block, std::int64_t bytes) {
    std::int64_t before = -1;
    cache.get(&cache, block, bytes, [&] {
      ++reads;
      before = live;
      live += bytes;
      return RowCache::Rows(new std::vector<std::byte>(static_cast<std::size_t>(bytes)),
                            [&live](const std::vector<std::byte>* rows) {
                              live -= std::ssize(*rows);
                              delete rows;
                            });
    });
    return before;
  };
  EXPECT_EQ(live_before(0, 60), 0);
  EXPECT_EQ(live_before(1, 60), 0) << "block 0 has made room";
  EXPECT_EQ(live_before(2, 40), 60);
  EXPECT_EQ(live_before(1, 60), -1);
  EXPECT_EQ(live_before(3, 40), 60) << "block 2 is the oldest";
  EXPECT_EQ(live_before(1, 60), -1);
  EXPECT_EQ(live_before(2, 40), 60);
  EXPECT_EQ(live_before(4, 300), 0) << "a block of more than the budget is alone";
  EXPECT_EQ(live_before(4, 300), -1);
  EXPECT_EQ(live_before(5, 100), 0);
  EXPECT_EQ(reads, 7);
}

TEST(RowCache, BlocksThatThreadsReadAtOnceAreInTheBudget) {
  constexpr std::int64_t bytes = 40, budget = 100;
  RowCache cache(budget);
  std::atomic<std::int64_t> being_read = 0, largest = 0, errors = 0;
  const auto read = [&](std::int64_t block) {
    const std::int64_t now = being_read += bytes;
    for (std::int64_t seen = largest; now > seen && !largest.compare_exchange_weak(seen, now);) {
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    being_read -= bytes;
    if (block % 7 == 0) throw std::runtime_error("damaged");
    return std::make_shared<const std::vector<std::byte>>(bytes, static_cast<std::byte>(block));
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (std::int64_t i = 0; i < 60; ++i) {
        const std::int64_t block = (thread * 17 + i) % 90;
        try {
          const RowCache::Rows rows = cache.get(&cache, block, bytes, [&] { return read(block); });
          EXPECT_EQ(rows->front(), static_cast<std::byte>(block));
        } catch (const std::runtime_error&) {
          ++errors;  // its memory is given back, so the others do not wait for ever
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(largest.load(), budget);
  EXPECT_GT(largest.load(), bytes) << "two blocks fit";
  EXPECT_GT(errors.load(), 0);
}

}  // namespace
}  // namespace trireme::data
