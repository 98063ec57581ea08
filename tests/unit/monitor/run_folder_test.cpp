// SPDX-License-Identifier: Apache-2.0
//
// The checks of names in a run folder, and the records that are read from it.

#include "trireme/monitor/run_folder.hpp"

#include <filesystem>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"
#include "trireme/base/check.hpp"

namespace trireme::monitor {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::ThrowsMessage;

class RunFolders : public testing::Test {
 protected:
  ScratchFolder scratch;
  RunFolder folder{scratch.path()};
  Log quiet{false};
};

TEST_F(RunFolders, CheckpointsOrMetricsMakeARunFolder) {
  EXPECT_FALSE(folder.has_run());
  write_text(folder.log(), "");
  EXPECT_FALSE(folder.has_run());
  write_text(folder.metrics(), "");
  EXPECT_TRUE(folder.has_run());
  fs::remove(folder.metrics());
  fs::create_directory(folder.checkpoints());
  EXPECT_TRUE(folder.has_run());
}

TEST_F(RunFolders, NoNameOfARunMayBeALink) {
  folder.check_names(true);
  write_text(folder / "other", "precious");
  fs::create_directory(folder.checkpoints());
  for (const std::string& path :
       {folder.log(), folder.metrics(), folder.exit_record(), folder.environment(),
        folder / io::run_names::deck, folder / io::run_names::decks,
        folder / io::run_names::tensorboard, folder / io::run_names::trace,
        folder / io::run_names::prediction, folder / io::run_names::algorithms,
        folder / "restart.json", folder / "chain.log", folder.checkpoints() + "/best.h5"}) {
    fs::create_symlink(folder / "other", path);
    EXPECT_THAT([&] { folder.check_names(false); },
                ThrowsMessage<InputError>(HasSubstr(path + ": is a link")));
    fs::remove(path);
  }
  folder.check_names(true);
  // The folder of checkpoints may be on another disk.
  fs::rename(folder.checkpoints(), folder / "elsewhere");
  fs::create_directory_symlink(folder / "elsewhere", folder.checkpoints());
  folder.check_names(true);
}

TEST_F(RunFolders, FilesAndFoldersAreNotInThePlaceOfEachOther) {
  fs::create_directory(folder.log());
  EXPECT_THROW(folder.check_names(false), InputError);
  fs::remove(folder.log());
  write_text(folder / io::run_names::tensorboard, "");
  EXPECT_THROW(folder.check_names(true), InputError);
  EXPECT_NO_THROW(folder.check_names(false)) << "without event files the name is not used";
  write_text(folder / io::run_names::decks, "");
  EXPECT_THROW(folder.check_names(false), InputError);
}

TEST_F(RunFolders, RecordsThatAreNoFilesAreSetAside) {
  ASSERT_EQ(::mkfifo(folder.exit_record().c_str(), 0600), 0);
  fs::create_directory(folder.metrics());
  write_text(folder.environment(), "[]");
  folder.check_names(true);  // They do not stop a start.
  folder.rename_other_kinds(quiet);
  EXPECT_TRUE(fs::is_fifo(folder.exit_record() + ".damaged"));
  EXPECT_TRUE(fs::is_directory(folder.metrics() + ".damaged"));
  EXPECT_EQ(contents(folder.environment()), "[]");
  EXPECT_FALSE(folder.read_exit_record());
}

TEST_F(RunFolders, ExitRecordIsAnObjectOrNothing) {
  EXPECT_FALSE(folder.read_exit_record());
  EXPECT_FALSE(folder.previous_end(quiet).is_done);
  for (const char* text : {R"({"code": 75})", R"({"code": "0"})", "{}"}) {
    write_text(folder.exit_record(), text);
    EXPECT_EQ(folder.read_exit_record()->dump(), nlohmann::json::parse(text).dump());
    EXPECT_FALSE(folder.previous_end(quiet).is_done) << text;
  }
  write_text(folder.exit_record(), R"({"code": 0})");
  EXPECT_TRUE(folder.previous_end(quiet).is_done);
  EXPECT_FALSE(folder.previous_end(quiet).times) << "an earlier version wrote no end";
  for (const char* times : {R"("start": "2026-03-01T12:00:00Z", "end": 7)",
                            R"("start": "yesterday", "end": "2026-03-01T12:00:00Z")",
                            R"("end": "2026-03-01T12:00:00Z")"}) {
    write_text(folder.exit_record(), fmt::format(R"({{"code": 0, {}}})", times));
    EXPECT_FALSE(folder.previous_end(quiet).times) << times;
  }
  write_text(folder.exit_record(),
             R"({"start": "1970-01-02T00:00:05Z", "end": "1970-01-02T00:01:00Z", "code": 75})");
  ASSERT_TRUE(folder.previous_end(quiet).times);
  EXPECT_EQ(folder.previous_end(quiet).times->start, 86405);
  EXPECT_EQ(folder.previous_end(quiet).times->end, 86460);
  fs::rename(folder.exit_record(), folder / "other");
  fs::create_symlink(folder / "other", folder.exit_record());
  EXPECT_THROW(folder.read_exit_record(), InputError);
}

TEST_F(RunFolders, ExitRecordThatCannotBeReadIsNamedAndKept) {
  std::size_t count = 0;
  for (const std::string& text :
       {std::string("{"), std::string("[]"), R"({"code": )" + std::string(100'000, '['),
        std::string(std::size_t{2} << 20, ' '), std::string("{\"code\": 0, \"code\": 1}")}) {
    write_text(folder.exit_record(), text);
    EXPECT_THAT([&] { folder.read_exit_record(); },
                ThrowsMessage<InputError>(HasSubstr(folder.exit_record())));
    EXPECT_FALSE(folder.previous_end(quiet).is_done);
    const std::string kept = folder.exit_record() + ".damaged";
    EXPECT_EQ(contents(count++ == 0 ? kept : fmt::format("{}.{}", kept, count)), text);
    EXPECT_FALSE(fs::exists(folder.exit_record()));
  }
}

}  // namespace
}  // namespace trireme::monitor
