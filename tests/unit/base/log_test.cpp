#include "trireme/base/log.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {
namespace {

struct LogFile : testing::Test {
  std::string path = (std::filesystem::temp_directory_path() / fmt::format("trireme_log_{}.txt", ::getpid())).string();
  ~LogFile() override { std::filesystem::remove(path); }
  std::vector<std::string> lines() const {
    std::ifstream file(path);
    std::vector<std::string> result;
    for (std::string line; std::getline(file, line);) result.push_back(line);
    return result;
  }
};

TEST_F(LogFile, LinesAreStampedAndNamed) {
  Log log;
  log.open_file(path);
  log.info("step {}", 3);
  log.warn("slow");
  log.error("broken");
  const auto read = lines();
  ASSERT_EQ(read.size(), 3u);
  const std::string stamp = R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ )";
  EXPECT_TRUE(std::regex_match(read[0], std::regex(stamp + "step 3")));
  EXPECT_TRUE(std::regex_match(read[1], std::regex(stamp + "warning: slow")));
  EXPECT_TRUE(std::regex_match(read[2], std::regex(stamp + "error: broken")));
}

TEST_F(LogFile, OnlyErrorsOfSilentRanksAreSeen) {
  Log log(false);
  log.open_file(path);
  log.info("not mine to say");
  log.error("but this is");
  ASSERT_EQ(lines().size(), 1u);
  EXPECT_NE(lines()[0].find("but this is"), std::string::npos);
}

TEST_F(LogFile, IsAppendedToAndWhole) {
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
  for (const auto& line : read) EXPECT_TRUE(line.ends_with("Z line of 17 letters")) << line;
}

TEST(Log, RefusesAFileItCannotOpen) {
  Log log;
  EXPECT_THROW(log.open_file("/nonexistent/folder/log.txt"), Failure);
}

}  // namespace
}  // namespace trireme
