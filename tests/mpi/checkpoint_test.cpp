// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints written and read by 1, 2 and 4 ranks:
// - every division of rows and every tensor group write the same file, and each of them can read
//   it;
// - errors of one rank are thrown on all ranks, and leave no file behind;
// - damaged or non-finite values are detected;
// - background writes produce the bytes of synchronous ones.

#include "trireme/checkpoint/checkpoint.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include "checkpoint_slices.hpp"
#include "support/shared_folder.hpp"
#include "support/verify_checkpoint.hpp"
#include "trireme/base/check.hpp"
#include "trireme/checkpoint/background.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/io/file.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;

using test::SharedFolder;

struct Roundtrip : testing::TestWithParam<Split> {};
INSTANTIATE_TEST_SUITE_P(Splits, Roundtrip, testing::Values(Split::rows, Split::tensors));

TEST_P(Roundtrip, EverySplitWritesAFileThatAllRanksReadWhole) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  example.add("model", "many_rows", {3001, 7}, parallel::InnerOrder::plain);
  // 18 MB: several blocks of the seal.
  example.add("model", "wide", {3, 1500000}, parallel::InnerOrder::plain);
  const WriteReport report = write(
      world(), path, share_of(example, GetParam(), world().rank(), world().size()), example_info());
  EXPECT_EQ(report.bytes, static_cast<std::int64_t>(std::filesystem::file_size(path)));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  EXPECT_EQ(verify_checkpoint(path), "");

  ExampleModel found = blank();
  found.add("model", "many_rows", {3001, 7}, parallel::InnerOrder::plain);
  found.add("model", "wide", {3, 1500000}, parallel::InnerOrder::plain);
  for (std::vector<float>& values : found.values) std::fill(values.begin(), values.end(), -1.0f);
  read(world(), path, found.slices());
  expect_same(found, example);
}

TEST(Checkpoint, AWholeWriteIsReadInParts) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example, found = blank();
  std::vector<TensorSlice> slices = example.slices();
  if (world().rank() != 0) {
    for (TensorSlice& piece : slices) piece.row_end = 0;
  }
  write(world(), path, slices, example_info());
  read(world(), path, share_of(found, Split::rows, world().rank(), world().size()));
  const std::vector<TensorSlice> mine =
      share_of(found, Split::rows, world().rank(), world().size());
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const auto first = mine[i].data - found.values[i].data(),
               count = (mine[i].row_end - mine[i].row_begin) * mine[i].spec->row_elements();
    for (std::int64_t k = 0; k < static_cast<std::int64_t>(found.values[i].size()); ++k) {
      const auto at = static_cast<std::size_t>(k);
      EXPECT_EQ(found.values[i][at],
                k >= first && k < first + count ? example.values[i][at] : -1.0f);
    }
  }
}

TEST(Checkpoint, TheDigestIsThatOfOneRank) {
  const SharedFolder folder;
  ExampleModel example;
  const WriteReport together =
      write(world(), folder.path + "/together.h5",
            share_of(example, Split::rows, world().rank(), world().size()), example_info());
  const WriteReport alone =
      write(comm::Communicator(), folder.path + "/alone" + std::to_string(world().rank()) + ".h5",
            example.slices(), example_info());
  EXPECT_EQ(together.digest, alone.digest);
}

TEST(Checkpoint, ContainsTheInfoOfRankZero) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  Info info = example_info();
  // Clocks differ between ranks; the file contains that of rank 0.
  info.state["elapsed_s"] = 1.0 + world().rank();
  info.deck += std::string(static_cast<std::size_t>(100000 * (1 + world().rank())), '#');
  write(world(), path, share_of(example, Split::rows, world().rank(), world().size()), info);
  const Contents contents = read_contents(path);
  const Info expected = example_info();
  EXPECT_TRUE(contents.sealed);
  EXPECT_EQ(contents.info.step, expected.step);
  EXPECT_EQ(contents.info.epoch, expected.epoch);
  EXPECT_EQ(contents.info.epoch_samples, expected.epoch_samples);
  EXPECT_EQ(contents.info.samples, expected.samples);
  EXPECT_EQ(contents.info.updates, expected.updates);
  EXPECT_EQ(contents.info.deck, expected.deck + std::string(100000, '#'));
  EXPECT_EQ(contents.info.classes, expected.classes);
  for (const auto& [key, value] : expected.state)
    EXPECT_EQ(contents.info.state.at(key), value) << key;
  EXPECT_EQ(std::get<double>(contents.info.state.at("elapsed_s")), 1.0);
  EXPECT_EQ(contents.tensors.size(), example.paths.size());
}

TEST(Checkpoint, ReadContentsReachEveryRank) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  write(world(), path, share_of(example, Split::rows, world().rank(), world().size()),
        example_info());
  const Contents own = read_contents(path), received = read_contents(world(), path);
  EXPECT_EQ(received.sealed, own.sealed);
  EXPECT_EQ(received.info.deck, own.info.deck);
  EXPECT_EQ(received.info.classes, own.info.classes);
  EXPECT_EQ(received.info.state, own.info.state);
  ASSERT_EQ(received.tensors.size(), own.tensors.size());
  for (std::size_t i = 0; i < own.tensors.size(); ++i) {
    EXPECT_EQ(received.tensors[i].path, own.tensors[i].path);
    EXPECT_EQ(received.tensors[i].shape, own.tensors[i].shape) << own.tensors[i].path;
    EXPECT_EQ(received.tensors[i].digest, own.tensors[i].digest) << own.tensors[i].path;
    EXPECT_EQ(received.tensors[i].has_digest, own.tensors[i].has_digest) << own.tensors[i].path;
  }
  EXPECT_THROW(read_contents(world(), folder.path + "/missing.h5"), InputError);
}

TEST(Checkpoint, RowsHeldTwiceOrNotAtAllAreRefusedOnAllRanks) {
  const SharedFolder folder;
  ExampleModel example;
  std::vector<TensorSlice> slices = share_of(example, Split::rows, world().rank(), world().size());
  if (world().rank() == world().size() - 1) slices[1].row_end -= 1;
  EXPECT_THROW(write(world(), folder.path + "/a.h5", slices, example_info()), Failure);
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.h5"));
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.h5.tmp"));
}

TEST(Checkpoint, AMissingFolderIsAnErrorOnAllRanks) {
  ExampleModel example;
  EXPECT_THROW(
      write(world(), "/nonexistent/folder/a.h5",
            share_of(example, Split::rows, world().rank(), world().size()), example_info()),
      Failure);
}

TEST(Checkpoint, AnErrorOfOneRankIsThrownOnAll) {
  const SharedFolder folder;
  ExampleModel example, found = blank();
  write(world(), folder.path + "/a.h5",
        share_of(example, Split::rows, world().rank(), world().size()), example_info());
  std::vector<TensorSlice> slices = found.slices();
  if (world().rank() == world().size() - 1) slices[0].path = "model/missing.weight";
  EXPECT_THROW(read(world(), folder.path + "/a.h5", slices), InputError);
}

TEST(Checkpoint, AnyTensorGroupWritesTheSameFileAndAnyReadsIt) {
  const SharedFolder folder;
  const int rank = world().rank(), size = world().size();
  SplitModel alone(0, 1, 1);
  alone.initialize();
  std::uint64_t digest = 0;
  if (rank == 0)
    digest =
        write(comm::Communicator(), folder.path + "/alone.h5", alone.slices(true), example_info())
            .digest;
  world().broadcast(std::as_writable_bytes(std::span(&digest, 1)), 0);
  for (const int tensor : divisors(size)) {
    SplitModel written(rank, size, tensor);
    written.initialize();
    const std::string path = folder.path + "/" + std::to_string(tensor) + ".h5";
    EXPECT_EQ(write(world(), path, written.slices(true), example_info()).digest, digest);
    if (rank == 0) {
      EXPECT_EQ(verify_checkpoint(path), "");
      EXPECT_EQ(combined_digest(compute_digests(io::Hdf5Reader(io::index_own_hdf5(path)))), digest);
    }
    for (const int other : divisors(size)) {
      SplitModel found(rank, size, other), expected(rank, size, other);
      expected.initialize();
      read(world(), path, found.slices(false));
      EXPECT_EQ(found.values, expected.values)
          << "written over " << tensor << ", read over " << other;
      // Also reads each rank's share of its part.
      SplitModel shared(rank, size, other);
      read(world(), path, shared.slices(true));
      for (std::size_t i = 0; i < shared.specs.size(); ++i) {
        const TensorSlice piece = shared.slices(true)[i];
        const auto first = piece.data - shared.values[i].data(),
                   count = (piece.row_end - piece.row_begin) * shared.parts[i].row_elements();
        EXPECT_TRUE(std::equal(piece.data, piece.data + count, expected.values[i].data() + first))
            << shared.specs[i].name;
      }
    }
  }
}

TEST(Checkpoint, ColumnsOfMoreThanTheStagingBufferGoInRounds) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  // 146 MB: on two ranks two rounds of 64 MiB each.
  const parallel::ParameterSpec spec{
      .name = "w", .shape = {70000, 520}, .split = {parallel::Split::Along::columns, {260, 260}}};
  const parallel::TensorPartition part(spec, world().rank(), world().size());
  std::vector<float> values(static_cast<std::size_t>(part.elements()));
  const auto place_of = [&](std::int64_t row, const parallel::TensorPartition::Segment& segment,
                            std::int64_t i) {
    // Whole numbers that float32 represents exactly.
    return static_cast<float>((row * 520 + segment.file + i) % 16777213);
  };
  const auto for_each = [&](auto&& body) {
    for (std::int64_t row = 0; row < part.rows(); ++row) {
      for (const parallel::TensorPartition::Segment& segment : part.segments()) {
        for (std::int64_t i = 0; i < segment.count; ++i) {
          body(values[static_cast<std::size_t>(row * part.row_elements() + segment.local + i)],
               place_of(row, segment, i));
        }
      }
    }
  };
  for_each([](float& value, float place) { value = place; });
  const TensorSlice piece{"model/w", &spec, 0, part.rows(), values.data(), &part};
  write(world(), path, {&piece, 1}, example_info());
  std::fill(values.begin(), values.end(), -1.0f);
  read(world(), path, {&piece, 1});
  std::int64_t wrong = 0;
  for_each([&](float value, float place) { wrong += value != place; });
  EXPECT_EQ(wrong, 0);
}

TEST(Checkpoint, PartsHeldTwiceOrNotAtAllAreRefused) {
  const SharedFolder folder;
  const int rank = world().rank(), size = world().size();
  SplitModel model(rank, size, size);
  model.initialize();
  std::vector<TensorSlice> slices = model.slices(true);
  // Every rank writes its share of the replicated norm, so that parts of it belong to several
  // ranks.
  if (size > 1) {
    slices[1].row_end = 1;
    EXPECT_THROW(write(world(), folder.path + "/a.h5", slices, example_info()), Failure);
  }
  slices = model.slices(true);
  // Split along columns: the last rank lacks a row.
  if (rank == size - 1) --slices[2].row_end;
  EXPECT_THROW(write(world(), folder.path + "/a.h5", slices, example_info()), Failure);
  EXPECT_FALSE(std::filesystem::exists(folder.path + "/a.h5"));
}

TEST(Checkpoint, ADamagedValueIsSeenHoweverTheTensorIsRead) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  const int rank = world().rank(), size = world().size();
  SplitModel alone(0, 1, 1);
  alone.initialize();
  if (rank == 0) write(comm::Communicator(), path, alone.slices(true), example_info());
  world().barrier();
  // Rank 0 reads only rows 0 and 1 of the embedding, so the digest must be computed from the file.
  const auto few_rows = [&](SplitModel& model) {
    std::vector<TensorSlice> slices{model.slices(false)[0]};
    slices[0].row_end = rank == 0 ? std::min<std::int64_t>(2, model.parts[0].rows()) : 0;
    return slices;
  };
  for (const bool damaged : {false, true}) {
    // The damaged row is not one that rank 0 reads.
    if (damaged) damage(path, alone.values[0], 13 * 7 - 1);
    for (const int tensor : divisors(size)) {
      SplitModel model(rank, size, tensor);
      if (damaged) {
        EXPECT_THROW(read(world(), path, model.slices(false)), InputError);
        EXPECT_THROW(read(world(), path, model.slices(true)), InputError);
        EXPECT_THROW(read(world(), path, few_rows(model)), InputError);
      } else {
        EXPECT_NO_THROW(read(world(), path, few_rows(model)));
      }
    }
  }
}

TEST(Checkpoint, RanksMayNameDifferentTensors) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  const int rank = world().rank(), size = world().size();
  SplitModel alone(0, 1, 1), found(0, 1, 1);
  alone.initialize();
  if (rank == 0) write(comm::Communicator(), path, alone.slices(true), example_info());
  world().barrier();
  const std::vector<TensorSlice> all = found.slices(false);
  // Like pipeline stages, which all have the first tensor.
  std::vector<TensorSlice> slices;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i == 0 || static_cast<int>(i) % size == rank) slices.push_back(all[i]);
  }
  read(world(), path, slices);
  EXPECT_EQ(found.values[0], alone.values[0]);
  damage(path, alone.values[2], 5);
  EXPECT_THROW(read(world(), path, slices), InputError);
}

/// Returns an arena that has exactly the memory for a copy of these slices.
Arena memory_for(std::span<const TensorSlice> slices) {
  Arena planned({DeviceKind::meta, 0}, "plan", 0);
  allocate_background_memory(planned, slices);
  return Arena({DeviceKind::cpu, 0}, "copy", planned.peak_bytes());
}

TEST(Background, GivesTheBytesOfTheSynchronousWayWhateverTheSplit) {
  const SharedFolder folder;
  for (const int tensor : divisors(world().size())) {
    SplitModel model(world().rank(), world().size(), tensor);
    model.initialize();
    const std::string sync = folder.path + "/sync.h5", background = folder.path + "/background.h5";
    const WriteReport expected = write(world(), sync, model.slices(true), example_info());
    Arena memory = memory_for(model.slices(true));
    StateCopy copy(memory, {});
    BackgroundWrite writing(world(), background, model.slices(true), example_info(), copy);
    for (std::vector<float>& values : model.values)
      // Training continues.
      std::fill(values.begin(), values.end(), 7.0f);
    const WriteReport report = writing.finish();
    EXPECT_EQ(report.digest, expected.digest);
    EXPECT_EQ(report.bytes, expected.bytes);
    EXPECT_EQ(first_difference(background, sync), -1) << "tensor " << tensor;
    EXPECT_FALSE(std::filesystem::exists(background + ".tmp"));
  }
}

TEST(Background, GivesTheSameBytesOfTensorsOfSeveralBlocks) {
  const SharedFolder folder;
  const std::string sync = folder.path + "/sync.h5", background = folder.path + "/background.h5";
  ExampleModel example;
  example.add("model", "wide", {3, 1500000}, parallel::InnerOrder::plain);
  example.add("model", "filters", {501, 33, 3, 3}, parallel::InnerOrder::channels_last);
  const std::vector<TensorSlice> slices =
      share_of(example, Split::rows, world().rank(), world().size());
  write(world(), sync, slices, example_info());
  Arena memory = memory_for(slices);
  StateCopy copy(memory, {});
  for (int time = 0; time < 2; ++time)
    BackgroundWrite(world(), background, slices, example_info(), copy).finish();
  EXPECT_EQ(memory.used_bytes(), 0) << "given back";
  EXPECT_EQ(first_difference(background, sync), -1);
  EXPECT_EQ(verify_checkpoint(background), "");
}

TEST(Background, AdvancesWithoutWaitingWhereNoThreadIsBusy) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  const std::vector<TensorSlice> slices =
      share_of(example, Split::rows, world().rank(), world().size());
  Arena memory = memory_for(slices);
  StateCopy copy(memory, {});
  BackgroundWrite writing(world(), path, slices, example_info(), copy);
  int parts = 0;
  for (bool done = false; !done; ++parts) {
    while (writing.busy()) std::this_thread::yield();
    EXPECT_TRUE(parts == 4 || !std::filesystem::exists(path)) << "in place before its last part";
    world().barrier();
    done = writing.advance();
  }
  EXPECT_EQ(parts, 5);  // digests, layout, values, read back, seal and rename
  EXPECT_EQ(verify_checkpoint(path), "");
  EXPECT_TRUE(writing.advance());  // has no further effect
}

/// A publisher that refuses: no rank has the file, and no temporary file is left.
TEST(Publisher, ThatThrowsLeavesNoCheckpoint) {
  const SharedFolder folder;
  ExampleModel example;
  const std::vector<TensorSlice> slices =
      share_of(example, Split::rows, world().rank(), world().size());
  Arena memory = memory_for(slices);
  StateCopy copy(memory, {});
  const Publisher refuse = [](io::StagedFile&) { throw Failure("the lease is lost"); };
  const std::string path = folder.path + "/a.h5";
  EXPECT_THROW(write(world(), path, slices, example_info(), refuse), Failure);
  EXPECT_THROW(BackgroundWrite(world(), path, slices, example_info(), copy, refuse).finish(),
               Failure);
  world().barrier();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  write(world(), path, slices, example_info());
  EXPECT_EQ(verify_checkpoint(path), "");
}

TEST(Background, LeavesNothingWhereItIsGivenUpInTheMiddle) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  const std::vector<TensorSlice> slices =
      share_of(example, Split::rows, world().rank(), world().size());
  Arena memory = memory_for(slices);
  StateCopy copy(memory, {});
  // The fourth part moves the file to its final name.
  for (int parts = 0; parts < 4; ++parts) {
    {
      BackgroundWrite writing(world(), path, slices, example_info(), copy);
      for (int i = 0; i < parts; ++i) writing.advance();
    }
    world().barrier();
    EXPECT_FALSE(std::filesystem::exists(path));
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp")) << "after " << parts << " parts";
  }
}

/// Limits the size of files of this process, like a quota: the disk has space, but the trial
/// allocation fails.
struct FileSizeLimit {
  rlimit before{};
  explicit FileSizeLimit(rlim_t bytes) {
    std::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before);
    rlimit limit = before;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before); }
};

TEST(Checkpoint, AFileThatMayNotHaveItsSizeIsGivenUpAndTheOlderOneStays) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  ExampleModel example;
  example.add("model", "wide", {4, 500000}, parallel::InnerOrder::plain);  // 8 MB
  const std::vector<TensorSlice> slices =
      share_of(example, Split::rows, world().rank(), world().size());
  write(world(), path, slices, example_info());
  const std::string before = bytes_of(path);
  world().barrier();
  Arena memory = memory_for(slices);
  StateCopy copy(memory, {});
  for (const bool background : {true, false}) {
    const FileSizeLimit limit(3'000'000);
    const auto attempt = [&] {
      if (background)
        BackgroundWrite(world(), path, slices, example_info(), copy).finish();
      else
        write(world(), path, slices, example_info());
    };
    EXPECT_THROW(attempt(), Failure) << (background ? "background" : "synchronous");
    world().barrier();
    EXPECT_TRUE(bytes_of(path) == before);
    EXPECT_FALSE(std::filesystem::exists(path + ".tmp"));
  }
  // The next attempt succeeds without the limit.
  EXPECT_NO_THROW(write(world(), path, slices, example_info()));
}

TEST(Checkpoint, AValueThatIsNotFiniteIsRefusedByName) {
  const SharedFolder folder;
  const std::string path = folder.path + "/a.h5";
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    ExampleModel example, found = blank();
    example.values[1].back() = bad;  // only the last rank holds it
    write(world(), path, share_of(example, Split::rows, world().rank(), world().size()),
          example_info());
    // ThrowsMessage would repeat the collective call on the ranks where it fails.
    const std::string message = test::message_of<InputError>(
        [&] { read(world(), path, share_of(found, Split::rows, world().rank(), world().size())); });
    EXPECT_THAT(message, HasSubstr("model/fc.weight"));
  }
}

}  // namespace
}  // namespace trireme::checkpoint
