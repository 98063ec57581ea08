// SPDX-License-Identifier: Apache-2.0
//
// What `trireme watch` shows of a run: progress, courses and notes from its rows.
#include "app/watch/run_status.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "app/watch/watch_text.hpp"
#include "support/scratch.hpp"

namespace trireme::app {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(Course, KeepsMeansOfTheWholeRun) {
  Course course;
  for (int i = 0; i < 100'000; ++i) course.add(i);
  const std::vector<double> means = course.means(10);
  ASSERT_EQ(means.size(), 10u);
  // Each is the middle of its tenth, but for the last, which may lack its newest values.
  for (std::size_t i = 0; i < 10; ++i)
    EXPECT_NEAR(means[i], 1e4 * (static_cast<double>(i) + 0.5), 500) << i;
  course.add(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(course.means(10), means);
}

TEST(Course, FewValuesAreKeptAsTheyAre) {
  Course course;
  EXPECT_TRUE(course.means(10).empty());
  for (const double value : {3.0, 1.0, 2.0}) course.add(value);
  EXPECT_THAT(course.means(10), ElementsAre(3, 1, 2));
  EXPECT_THAT(course.means(1), ElementsAre(2));
}

TEST(Sparkline, IsLowAtTheLeastAndHighAtTheLargest) {
  EXPECT_EQ(sparkline({}), "");
  EXPECT_EQ(sparkline({0, 3.5, 7}), "\u2581\u2585\u2588");
  EXPECT_EQ(sparkline({2, 2}), "\u2584\u2584");
}

class RunStatuses : public testing::Test {
 protected:
  void append(const std::string& text) {
    std::ofstream(folder / "metrics.jsonl", std::ios::app) << text;
  }
  void train(int step, double epoch, double elapsed) {
    append(fmt::format(R"({{"kind": "train", "step": {}, "epoch": {}, "loss": 0.5, "rate": 0.1, )"
                       R"("samples_per_s": 100, "step_s": 2, "forward_s": 0.5, "elapsed_s": {}}})"
                       "\n",
                       step, epoch, elapsed));
  }
  void read(RunStatus& status) {
    if (!reader)
      reader =
          std::make_unique<monitor::MetricsReader>(folder / "metrics.jsonl", RunStatus::keys());
    while (reader->next()) status.add(*reader);
  }

  test::ScratchFolder folder;
  std::unique_ptr<monitor::MetricsReader> reader;
};

TEST_F(RunStatuses, FollowsAFileThatGrows) {
  RunStatus status;
  status.set_stop(Duration{100, Duration::Unit::steps}, 0);
  train(10, 0.1, 20);
  append(R"({"kind": "train", "st)");
  read(status);
  EXPECT_EQ(status.value("step"), 10);
  EXPECT_EQ(status.part_done(), 0.1);
  EXPECT_FALSE(status.seconds_left());
  append("ep\": 20, \"elapsed_s\": 40}\n");
  read(status);
  EXPECT_EQ(status.value("step"), 20);
  EXPECT_EQ(status.part_done(), 0.2);
  EXPECT_NEAR(*status.seconds_left(), 160, 1e-9);
  EXPECT_FALSE(status.value("loss")) << "the latest row has none";
}

TEST_F(RunStatuses, ProgressIsInTheUnitOfTheStop) {
  train(10, 2.5, 20);
  const std::pair<Duration, double> cases[] = {{{20, Duration::Unit::steps}, 0.5},
                                               {{10, Duration::Unit::epochs}, 0.25},
                                               {{200, Duration::Unit::seconds}, 0.1},
                                               {{5, Duration::Unit::steps}, 1}};
  for (const auto& [stop, part] : cases) {
    RunStatus status;
    status.set_stop(stop, 0);
    reader.reset();
    read(status);
    EXPECT_EQ(status.part_done(), part);
  }
  RunStatus unknown;
  reader.reset();
  read(unknown);
  EXPECT_FALSE(unknown.part_done());
}

TEST_F(RunStatuses, ARollbackIsNoSpeed) {
  RunStatus status;
  status.set_stop(Duration{100, Duration::Unit::steps}, 0);
  train(10, 0, 10);
  train(20, 0, 20);
  train(15, 0, 30);
  train(25, 0, 40);
  read(status);
  EXPECT_EQ(status.part_done(), 0.25);
  EXPECT_NEAR(*status.seconds_left(), 75, 1e-9);
}

TEST_F(RunStatuses, ViewIsPrintableAndNoLineIsTooLong) {
  RunStatus status;
  status.set_stop(Duration{100, Duration::Unit::steps}, 0);
  train(10, 0.5, 20);
  append(R"({"kind": "event", "step": 3, "event": "loss_spike", "detail": "\u001b[2J)" +
         std::string(5000, 'x') + "\"}\n");
  append(R"({"kind": "evaluate", "step": 10, "split": "validation", "loss": 0.4, "top1": 0.9})"
         "\n");
  for (int i = 0; i < 100; ++i)
    append(R"({"kind": "evaluate", "split": ")" + std::to_string(i) + "\"}\n");
  for (int i = 0; i < 20; ++i)
    append(R"({"kind": "event", "event": "start", "detail": "x"})"
           "\n");
  append(R"({"kind": "account", "job": "slurm 17", "time_limit": 1600})"
         "\n");
  read(status);
  EXPECT_EQ(status.events().size(), 5u);
  EXPECT_EQ(status.evaluations().size(), 8u);
  const train::RunLife life{.name = "fashion", .heartbeat_age = 3};
  const std::vector<std::string> lines = view_of(status, life, 1000, 60);
  EXPECT_EQ(lines[0], "fashion: running, heartbeat 3 s ago, job slurm 17");
  EXPECT_THAT(lines[1], HasSubstr("step 10, epoch 0.50  [##..................] 10.0 %"));
  EXPECT_THAT(lines, testing::Contains(HasSubstr("forward 25.0 %")));
  EXPECT_THAT(lines, testing::Contains("validation at step 10: loss 0.4, top-1 90.00 %"));
  EXPECT_THAT(lines, testing::Contains("this start must end in 10:00"));
  for (const std::string& line : lines) {
    const auto continuation = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
    EXPECT_LE(std::ssize(line) - std::count_if(line.begin(), line.end(), continuation), 60) << line;
    EXPECT_EQ(line.find('\033'), std::string::npos) << line;
  }
}

/// A restart cuts an incomplete line off and appends its rows.
TEST_F(RunStatuses, FollowsAFileThatWasCut) {
  RunStatus status;
  train(10, 0, 10);
  append(R"({"kind": "train", "step": 999, "loss": 0.123456789)");
  read(status);
  const auto bytes = std::filesystem::file_size(folder / "metrics.jsonl");
  std::filesystem::resize_file(folder / "metrics.jsonl", bytes - 50);
  train(11, 0, 11);
  train(12, 0, 12);
  std::vector<std::string> lines;
  while (reader->next())
    if (const auto line = status.add(*reader)) lines.push_back(*line);
  EXPECT_THAT(lines, ElementsAre(HasSubstr("step 11,"), HasSubstr("step 12,")));
  std::filesystem::resize_file(folder / "metrics.jsonl", 0);
  train(1, 0, 1);
  read(status);
  EXPECT_EQ(status.value("step"), 1);
}

TEST_F(RunStatuses, NumbersBeyondAllMeasureAreLeftOut) {
  RunStatus status;
  for (int i = 0; i < 2000; ++i)
    append(R"({"kind": "train", "step": 1e300, "loss": 1.7e308, "rate": -1.7e308})"
           "\n");
  append(R"({"kind": "event", "step": 1e300, "event": "x", "detail": "y"})"
         "\n");
  append(R"({"kind": "account", "time_limit": 1e300})"
         "\n");
  append(R"({"kind": "evaluate", "step": 3})"
         "\n");
  read(status);
  EXPECT_FALSE(status.value("step"));
  EXPECT_FALSE(status.time_limit());
  EXPECT_TRUE(status.course("loss").means(10).empty());
  EXPECT_THAT(view_of(status, {.name = "a"}, 0, 80),
              ElementsAre(HasSubstr("no process holds"), "no step so far", "  step 0 x: y"));
  Course course;
  course.add(1.7e308);
  course.add(-std::numeric_limits<double>::infinity());
  EXPECT_TRUE(course.means(10).empty());
}

TEST(WatchText, WideCharactersTakeTwoColumns) {
  RunStatus status;
  const train::RunLife life{.name = "\u4e2d\u6587\U0001F600", .heartbeat_age = 1};
  EXPECT_EQ(view_of(status, life, 0, 4)[0], "\u4e2d\u6587");
  EXPECT_EQ(view_of(status, life, 0, 5)[0], "\u4e2d\u6587");
  EXPECT_EQ(view_of(status, life, 0, 7)[0], "\u4e2d\u6587\U0001F600:");
}

TEST(WatchText, ALostRunIsNotRunning) {
  EXPECT_EQ(train::describe(train::RunLife{.name = "a", .heartbeat_age = 3}),
            "running, heartbeat 3 s ago");
  EXPECT_THAT(train::describe(train::RunLife{.name = "a", .heartbeat_age = 90}),
              HasSubstr("killed"));
  EXPECT_THAT(train::describe(train::RunLife{.name = "a", .heartbeat_age = 3, .exit_code = 77}),
              HasSubstr("ended with 77"));
}

TEST_F(RunStatuses, ARunWithoutRowsHasAView) {
  RunStatus status;
  read(status);
  const std::vector<std::string> lines = view_of(status, {.name = "a"}, 0, 20);
  EXPECT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "no step so far");
  EXPECT_EQ(line_of(status), "step 0, 0 samples/s");
}

}  // namespace
}  // namespace trireme::app
