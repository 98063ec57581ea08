// SPDX-License-Identifier: Apache-2.0
//
// Tests Log: lines of the file, lines of several threads, and files that are removed or replaced.

#include "trireme/base/log.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

struct LogFileTest : testing::Test {
  std::string path =
      (std::filesystem::temp_directory_path() / fmt::format("trireme_log_{}.txt", ::getpid()))
          .string();
  ~LogFileTest() override { std::filesystem::remove(path); }
  std::vector<std::string> lines() const {
    std::ifstream file(path);
    std::vector<std::string> result;
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }
};

/// Returns whether `line` is a time such as "2026-03-01T12:30:05Z " followed by `rest`.
bool is_stamped(const std::string& line, const std::string& rest) {
  const std::string form = "dddd-dd-ddTdd:dd:ddZ ";
  if (line.size() < form.size() || line.substr(form.size()) != rest) return false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const bool fits = form[i] == 'd' ? line[i] >= '0' && line[i] <= '9' : line[i] == form[i];
    if (!fits) return false;
  }
  return true;
}

TEST_F(LogFileTest, IsOpenedAnewWhenItIsRemovedOrReplaced) {
  Log log;
  EXPECT_FALSE(log.reopen_if_removed()) << "no file";
  log.open_file(path);
  log.info("one");
  EXPECT_FALSE(log.reopen_if_removed());
  std::filesystem::remove(path);
  log.info("lost");
  EXPECT_TRUE(log.reopen_if_removed());
  log.info("two");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_TRUE(is_stamped(lines()[0], "two"));
  std::filesystem::rename(path, path + ".old");
  std::ofstream(path) << "of another program\n";
  EXPECT_TRUE(log.reopen_if_removed());
  log.info("three");
  ASSERT_EQ(lines().size(), 2u);
  EXPECT_TRUE(is_stamped(lines()[1], "three"));
  std::filesystem::remove(path + ".old");
  log.close_file();
  log.info("four");
  EXPECT_EQ(lines().size(), 2u);
  EXPECT_FALSE(log.reopen_if_removed());
}

TEST_F(LogFileTest, LinesAreStampedAndNamed) {
  Log log;
  log.open_file(path);
  log.info("step {}", 3);
  log.warn("slow");
  log.error("broken");
  const auto read = lines();
  ASSERT_EQ(read.size(), 3u);
  EXPECT_TRUE(is_stamped(read[0], "step 3"));
  EXPECT_TRUE(is_stamped(read[1], "warning: slow"));
  EXPECT_TRUE(is_stamped(read[2], "error: broken"));
}

TEST_F(LogFileTest, OnlyErrorsOfSilentRanksAreSeen) {
  Log log(false);
  log.open_file(path);
  log.info("not mine to say");
  log.error("but this is");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_THAT(lines()[0], HasSubstr("but this is"));
}

TEST_F(LogFileTest, IsAppendedToAndWhole) {
  for (int start = 0; start < 2; ++start) {
    Log log;
    log.open_file(path);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t)
      threads.emplace_back([&log] {
        for (int i = 0; i < 5; ++i) log.info("line of {} letters", 17);
      });
    for (auto& thread : threads) thread.join();
  }
  const auto read = lines();
  ASSERT_EQ(read.size(), 30u);
  for (const auto& line : read) EXPECT_THAT(line, EndsWith("Z line of 17 letters"));
}

TEST(Log, RefusesAFileItCannotOpen) {
  Log log;
  EXPECT_THROW(log.open_file("/nonexistent/folder/log.txt"), InputError);
}

TEST_F(LogFileTest, AnErrorCanBeRecordedInTheFileAlone) {
  Log log;
  log.record_error("there is no file yet");
  log.open_file(path);
  testing::internal::CaptureStderr();
  log.record_error("a sample is damaged");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_TRUE(is_stamped(lines()[0], "error: a sample is damaged")) << lines()[0];
}

}  // namespace
}  // namespace trireme
