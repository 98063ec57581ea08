// SPDX-License-Identifier: Apache-2.0
//
// Which checkpoint a restart takes, which ones it skips, and which files rotation keeps. Also
// restart.json and exit.json.
#include "trireme/checkpoint/folder.hpp"

#include <algorithm>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "example.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using testing::ThrowsMessage;

namespace fs = std::filesystem;

const comm::Communicator self;

/// Writes a valid checkpoint of a step.
void write_step(const ScratchFolder& folder, std::int64_t step) {
  ExampleModel example;
  Info info = example_info();
  info.step = step;
  write(self, folder / step_file_name(step), example.slices(), info);
}

/// Overwrites 8 bytes in the middle of a file.
void damage(const std::string& path) {
  const io::File file(path, io::File::Mode::update);
  file.write_at(file.size() / 2, "damaged?", 8);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

TEST(Newest, SkipsDamagedFilesWithTheReason) {
  const ScratchFolder folder;
  for (const std::int64_t step : {9, 10, 100}) write_step(folder, step);
  std::ofstream(folder / "step_000000200.h5.tmp") << "half written";
  std::ofstream(folder / "step_000000300.h5") << "no HDF5 file at all";
  damage(folder / step_file_name(100));
  const CheckpointChoice choice = find_newest(self, folder.path());
  EXPECT_EQ(choice.path, folder / step_file_name(10));
  EXPECT_EQ(choice.step, 10);
  EXPECT_EQ(choice.contents.info.step, 10);
  EXPECT_EQ(choice.contents.info.deck, example_info().deck);
  EXPECT_EQ(combined_digest(choice.contents.tensors),
            combined_digest(read_contents(choice.path).tensors));
  ASSERT_EQ(choice.rejected.size(), 2u);
  EXPECT_EQ(choice.rejected[0].path, folder / step_file_name(300));
  EXPECT_EQ(choice.rejected[1].path, folder / step_file_name(100));
  EXPECT_THAT(choice.rejected[1].reason, HasSubstr("bytes"));

  Log log(false);
  rename_rejected(self, choice.rejected, log);
  EXPECT_TRUE(fs::exists(folder / "step_000000100.h5.damaged"));
  EXPECT_TRUE(find_newest(self, folder.path()).rejected.empty());
}

/// A rollback refuses intact files by what they state, unless there is no other.
TEST(Newest, RefusedFilesAreSetAsideAndNotCalledDamaged) {
  const ScratchFolder folder;
  for (const std::int64_t step : {9, 10, 11}) write_step(folder, step);
  const auto above = [](std::int64_t most) {
    return [most](const Info& info) { return info.step > most ? "refused" : std::string(); };
  };
  const CheckpointChoice all = find_newest(self, folder.path(), above(8));
  EXPECT_EQ(all.step, 11);
  EXPECT_TRUE(all.rejected.empty());
  const CheckpointChoice choice = find_newest(self, folder.path(), above(9));
  EXPECT_EQ(choice.step, 9);
  ASSERT_EQ(choice.rejected.size(), 2u);
  EXPECT_EQ(choice.rejected[0].reason, "refused");
  Log log(false);
  rename_rejected(self, choice.rejected, log);
  EXPECT_TRUE(fs::exists(folder / "step_000000011.h5.failed"));
  EXPECT_TRUE(fs::exists(folder / "step_000000010.h5.failed"));
  EXPECT_EQ(find_newest(self, folder.path()).step, 9);
}

TEST(Newest, SkipsAFileWhoseStepDiffersFromItsName) {
  const ScratchFolder folder;
  for (const std::int64_t step : {9, 10}) write_step(folder, step);
  fs::copy(folder / step_file_name(9), folder / step_file_name(500));
  fs::create_directory(folder / step_file_name(600));
  const CheckpointChoice choice = find_newest(self, folder.path());
  EXPECT_EQ(choice.step, 10);
  ASSERT_EQ(choice.rejected.size(), 2u);
  EXPECT_THAT(choice.rejected[0].reason, HasSubstr("folder"));
  EXPECT_THAT(choice.rejected[1].reason, HasSubstr("step 500"));
}

TEST(Newest, OfANewerProgramIsNotSkipped) {
  const ScratchFolder folder;
  write_step(folder, 9);
  io::Hdf5File file = io::Hdf5File::create(folder / step_file_name(10), {});
  file.write_attribute("/", "format", std::string("trireme-checkpoint"));
  file.write_attribute("/", "version", std::int64_t{2});
  file.close();
  EXPECT_THAT([&] { find_newest(self, folder.path()); },
              ThrowsMessage<InputError>(HasSubstr("newer program")));
  EXPECT_EQ(names_in(folder.path()).size(), 2u);
}

/// Writes a file of a step with a valid seal, as everybody can.
template <class Fill>
void write_sealed(const std::string& path, Fill&& fill) {
  const std::int64_t user_block = io::user_block_bytes(0);
  io::Hdf5File file = io::Hdf5File::create(path, {.user_block_bytes = user_block});
  fill(file);
  file.close();
  io::seal_file(path, user_block);
  ASSERT_EQ(io::check_seal(path), "");
}

TEST(Newest, WithAValidSealAndRefusedContentStops) {
  const auto expect_refused = [](const ScratchFolder& folder, const std::string& words) {
    const std::string message =
        test::message_of<InputError>([&] { find_newest(self, folder.path()); });
    for (const std::string& part : {folder / step_file_name(10), words,
                                    std::string("its seal is valid"), std::string("move it away")})
      EXPECT_THAT(message, HasSubstr(part));
    EXPECT_EQ(names_in(folder.path()).size(), 2u);
  };
  const ScratchFolder shard, values;
  write_step(shard, 9);
  write_sealed(shard / step_file_name(10), [](io::Hdf5File& file) {
    file.write_attribute("/", "format", std::string("trireme-shard"));
  });
  expect_refused(shard, "trireme-checkpoint");
  write_step(values, 9);
  write_sealed(values / step_file_name(10), [](io::Hdf5File& file) {
    file.write_attribute("/", "format", std::string("trireme-checkpoint"));
    file.write_attribute("/", "version", std::int64_t{1});
    file.write_attribute("/", "complete", std::int64_t{0});
  });
  expect_refused(values, "complete");
}

/// The child process that reads the structure ends: by a crash, which the file causes, or for a
/// reason of the machine.
TEST(Newest, WithAValidSealThatStopsTheReadingChild) {
  const ScratchFolder folder;
  write_step(folder, 9);
  write_step(folder, 10);
  io::set_hdf5_index_command({"/bin/sh", "-c", "kill -SEGV $$", "sh"});
  EXPECT_THAT([&] { find_newest(self, folder.path()); },
              ThrowsMessage<InputError>(HasSubstr("move it away")));
  io::set_hdf5_index_command({"/bin/sh", "-c", "kill -KILL $$", "sh"});
  EXPECT_THROW(find_newest(self, folder.path()), Failure);
  io::set_hdf5_index_command({"/nowhere/trireme"});
  EXPECT_THROW(find_newest(self, folder.path()), Failure);
  io::set_hdf5_index_command({});
  EXPECT_EQ(find_newest(self, folder.path()).step, 10);
}

TEST(Leftovers, OfOtherKindsAreSetAside) {
  const ScratchFolder folder;
  Log log(false);
  for (const char* name : {"step_000000010.h5.tmp", "best.h5.tmp", "mine.h5.tmp"})
    fs::create_directories(folder / (std::string(name) + "/inner"));
  remove_leftovers(self, folder.path(), log);
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"best.h5.tmp.damaged", "mine.h5.tmp",
                                                               "step_000000010.h5.tmp.damaged"}));
  EXPECT_TRUE(fs::exists(folder / "best.h5.tmp.damaged/inner"));
}

TEST(Leftovers, AreHalfWrittenCheckpointsAndNothingElse) {
  const ScratchFolder folder;
  Log log(false);
  write_step(folder, 9);
  for (const char* name :
       {"step_000000010.h5.tmp", "best.h5.tmp", "notes.tmp", "step_000000008.h5.damaged"})
    std::ofstream(folder / name) << "half written";
  fs::create_directory(folder / "folder.h5.tmp");
  remove_leftovers(self, folder.path(), log);
  EXPECT_EQ(names_in(folder.path()),
            (std::vector<std::string>{"folder.h5.tmp", "notes.tmp", "step_000000008.h5.damaged",
                                      step_file_name(9)}));
  remove_leftovers(self, folder / "missing", log);
}

TEST(Newest, IsNoneOfAnEmptyOrMissingFolder) {
  const ScratchFolder folder;
  EXPECT_TRUE(find_newest(self, folder.path()).path.empty());
  EXPECT_TRUE(find_newest(self, folder / "missing").path.empty());
  // A folder that cannot be listed may have checkpoints.
  fs::create_symlink("loop", folder / "loop");
  EXPECT_THROW(find_newest(self, folder / "loop"), InputError);
}

TEST(Newest, ReportsDamagedFilesUnlikeAnEmptyFolder) {
  const ScratchFolder folder;
  write_step(folder, 5);
  damage(folder / step_file_name(5));
  const CheckpointChoice choice = find_newest(self, folder.path());
  EXPECT_TRUE(choice.path.empty());
  EXPECT_EQ(choice.rejected.size(), 1u);
}

TEST(RestartAttempts, ACheckpointWithTwoFailedStartsIsSkipped) {
  const ScratchFolder run;
  const std::string folder = run / "checkpoints";
  fs::create_directory(folder);
  Log log(false);
  for (const std::int64_t step : {10, 20}) {
    ExampleModel example;
    Info info = example_info();
    info.step = step;
    write(self, folder + "/" + step_file_name(step), example.slices(), info);
  }
  const auto choose = [&] {
    return skip_failed_checkpoint(self, run.path(), find_newest(self, folder), log).step;
  };
  EXPECT_EQ(choose(), 20);
  count_attempt(self, run.path(), step_file_name(20));
  EXPECT_EQ(choose(), 20);  // a single failure has many possible causes
  clear_attempts(self, run.path());
  count_attempt(self, run.path(), step_file_name(20));
  EXPECT_EQ(choose(), 20);  // only consecutive failures count
  count_attempt(self, run.path(), step_file_name(20));
  EXPECT_EQ(choose(), 10);
  EXPECT_TRUE(fs::exists(folder + "/" + step_file_name(20) + ".failed"));
  for (int i = 0; i < 3; ++i) count_attempt(self, run.path(), step_file_name(10));
  EXPECT_EQ(read_attempts(self, run.path()).starts, 3);  // another file starts a new count
  EXPECT_EQ(choose(), 10);                               // the last checkpoint is never skipped
}

TEST(RestartAttempts, AnInvalidFileCountsNone) {
  const ScratchFolder run;
  for (const char* text :
       {"", "{", "[]", R"({"checkpoint": 3, "starts": 2})", R"({"checkpoint": "a"})"}) {
    std::ofstream(run / "restart.json") << text;
    EXPECT_EQ(read_attempts(self, run.path()).starts, 0) << text;
  }
}

TEST(RestartAttempts, AFileBeyondTheLimitsIsRefused) {
  const ScratchFolder run;
  const std::string path = run / "restart.json";
  for (const std::string& text : {std::string(100'000, '['), std::string(std::size_t{2} << 20, ' '),
                                  R"({"checkpoint": )" + std::string(100'000, '[')}) {
    std::ofstream(path) << text;
    EXPECT_THAT([&] { read_attempts(self, run.path()); },
                ThrowsMessage<InputError>(HasSubstr("remove it")));
  }
  fs::remove(path);
  fs::create_symlink("/dev/zero", path);
  EXPECT_THAT([&] { read_attempts(self, run.path()); },
              ThrowsMessage<InputError>(HasSubstr("is a link")));
}

TEST(RestartAttempts, ACountBeyondAllStartsCountsOn) {
  const ScratchFolder run;
  for (const char* count : {"2147483647", "18446744073709551615"}) {
    std::ofstream(run / "restart.json")
        << fmt::format(R"({{"checkpoint": "a.h5", "starts": {}}})", count);
    const int before = read_attempts(self, run.path()).starts;
    EXPECT_GT(before, 2) << count;
    count_attempt(self, run.path(), "a.h5");
    EXPECT_GE(read_attempts(self, run.path()).starts, before) << count;
  }
}

TEST(Rotation, KeepsTheNewestAndTheProtected) {
  const ScratchFolder folder;
  for (const std::int64_t step : {1, 2, 3, 4, 5})
    std::ofstream(folder / step_file_name(step)) << step;
  for (const char* name :
       {"best.h5", "step_000000006.h5.tmp", "step_000000001.h5.damaged", "notes.txt"})
    std::ofstream(folder / name) << name;
  // A folder with the name of a checkpoint is not ours and stays.
  fs::create_directories(folder / (step_file_name(0) + "/inner"));
  fs::create_directory(folder / step_file_name(9));
  rotate(folder.path(), {.newest = 2}, step_file_name(1));
  const std::vector<std::string> expected{"best.h5",
                                          "notes.txt",
                                          step_file_name(0),
                                          step_file_name(1),
                                          "step_000000001.h5.damaged",
                                          step_file_name(4),
                                          step_file_name(5),
                                          step_file_name(9)};
  EXPECT_EQ(names_in(folder.path()), expected);
}

TEST(Rotation, KeepsTheFirstAtOrPastEachMultiple) {
  const ScratchFolder folder;
  const RetentionPolicy keep{.newest = 2,
                             .intervals_up_to = [](std::int64_t step) { return step / 10; }};
  // in the order in which a run writes them
  for (std::int64_t step = 3; step <= 33; step += 3) {
    std::ofstream(folder / step_file_name(step)) << step;
    rotate(folder.path(), keep, step_file_name(step));
  }
  const std::vector<std::string> expected{step_file_name(12), step_file_name(21),
                                          step_file_name(30), step_file_name(33)};
  EXPECT_EQ(names_in(folder.path()), expected);
}

TEST(MoveAside, KeepsEveryFileUnderANewFolder) {
  const ScratchFolder folder;
  for (const std::int64_t step : {1, 2}) std::ofstream(folder / step_file_name(step)) << step;
  std::ofstream(folder / "best.h5") << "best";
  Log log(false);
  archive_checkpoints(self, folder.path(), log);
  ASSERT_EQ(names_in(folder.path()).size(), 1u);
  const std::string aside = names_in(folder.path())[0];
  EXPECT_THAT(aside, StartsWith("before-"));
  EXPECT_EQ(names_in(folder / aside).size(), 3u);
  EXPECT_TRUE(find_newest(self, folder.path()).path.empty());
  archive_checkpoints(self, folder / "missing", log);  // a run without checkpoints: nothing to do
}

TEST(ExitRecord, NamesTheNewestCheckpointThatExists) {
  const ScratchFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  const auto named = [&] {
    write_exit_record(folder.path(), {"", ExitCode::done, "", 3});
    return nlohmann::json::parse(io::read_text_file(folder / "exit.json"))["checkpoint"];
  };
  EXPECT_EQ(named(), "") << "no folder";
  fs::create_directory(checkpoints);
  for (const std::int64_t step : {2, 4, 30})
    std::ofstream(checkpoints + "/" + step_file_name(step)) << step;
  // None of these is a checkpoint of a step.
  for (const char* name : {"best.h5", "step_000000050.h5.tmp", "step_000000060.h5.damaged"})
    std::ofstream(checkpoints + "/" + name) << name;
  fs::create_directory(checkpoints + "/step_000000070.h5");
  fs::create_symlink("nowhere", checkpoints + "/step_000000080.h5");
  EXPECT_EQ(named(), "step_000000030.h5");
  fs::remove(checkpoints + "/step_000000030.h5");
  EXPECT_EQ(named(), "step_000000004.h5");
}

TEST(ExitRecord, IsWrittenAndRemoved) {
  const ScratchFolder folder;
  const ExitRecord record{"2026-01-02T03:04:05Z", ExitCode::stopped_early, "signal \"USR1\"\n", 12};
  write_exit_record(folder.path(), record);
  const nlohmann::json json = nlohmann::json::parse(io::read_text_file(folder / "exit.json"));
  EXPECT_EQ(json["start"], "2026-01-02T03:04:05Z");
  EXPECT_EQ(json["code"], 75);
  EXPECT_EQ(json["reason"], "signal \"USR1\"\n");
  EXPECT_EQ(json["step"], 12);
  EXPECT_EQ(json["checkpoint"], "") << "there is none";
  remove_exit_record(folder.path());
  EXPECT_FALSE(fs::exists(folder / "exit.json"));
  remove_exit_record(folder.path());  // removing it twice is not an error
}

}  // namespace
}  // namespace trireme::checkpoint
