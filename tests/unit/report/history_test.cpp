// SPDX-License-Identifier: Apache-2.0
//
// What a report keeps of the rows of metrics.jsonl.
#include "trireme/report/history.hpp"

#include <algorithm>
#include <fstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/scratch.hpp"

namespace trireme::report {
namespace {

using Json = nlohmann::ordered_json;

class RunHistory : public testing::Test {
 protected:
  void add(const Json& row) { text_ += row.dump() + "\n"; }
  void train(int step, double loss) {
    add({{"kind", "train"},
         {"step", step},
         {"epoch", step / 10.0},
         {"samples", 64 * step},
         {"loss", loss},
         {"step_s", 0.2},
         {"forward_s", 0.1},
         {"elapsed_s", 0.2 * step}});
  }
  void event(const char* kind, int step) {
    add({{"kind", "event"}, {"step", step}, {"event", kind}, {"detail", "why"}, {"elapsed_s", 1}});
  }

  History read() {
    const std::string path = scratch_.path() + "/metrics.jsonl";
    std::ofstream(path) << text_;
    monitor::MetricsReader row(path, HistoryReader::keys());
    HistoryReader reader(64);
    while (row.next()) reader.add(row);
    return reader.result();
  }

  static double value(const Track& track, const char* name, std::size_t bucket) {
    const auto& names = track.names();
    const auto at = std::find(names.begin(), names.end(), name) - names.begin();
    return track.range(bucket, static_cast<std::size_t>(at)).mean();
  }

 private:
  test::ScratchFolder scratch_;
  std::string text_;
};

TEST_F(RunHistory, CurvesHavePlacesOnAllAxes) {
  for (int step = 5; step <= 20; step += 5) train(step, 1.0 / step);
  const History history = read();
  ASSERT_EQ(history.train.buckets(), 4u);
  EXPECT_EQ(history.train.place(2), (Place{15, 1.5, 960, 3}));
  EXPECT_EQ(value(history.train, "loss", 3), 1.0 / 20);
  EXPECT_EQ(value(history.train, "batch", 3), 64);
  EXPECT_EQ(history.latest.at("loss"), 1.0 / 20);
}

TEST_F(RunHistory, EvaluationsArePlacedAmongTheSamplesOfTraining) {
  train(10, 1);
  add({{"kind", "evaluate"},
       {"step", 15},
       {"epoch", 1.5},
       {"split", "validation"},
       {"samples", 9},
       {"loss", 0.5},
       {"top1", 0.9},
       {"elapsed_s", 3}});
  add({{"kind", "evaluate"},
       {"step", 15},
       {"epoch", 1.5},
       {"split", "validation"},
       {"weights", "ema"},
       {"loss", 0.4},
       {"elapsed_s", 3}});
  const History history = read();
  EXPECT_EQ(history.evaluations.at("validation").place(0), (Place{15, 1.5, 960, 3}));
  EXPECT_EQ(history.latest_evaluations.at("validation").at("top1"), 0.9);
  EXPECT_EQ(history.latest_evaluations.at("validation (ema)").at("loss"), 0.4);
}

TEST_F(RunHistory, AFreshStartBeginsAnotherRun) {
  train(5, 9);
  event("skipped_step", 5);
  event("start", 0);
  train(5, 1);
  const History history = read();
  EXPECT_EQ(history.train.buckets(), 1u);
  EXPECT_EQ(history.train.whole_range(0).high, 1);
  EXPECT_EQ(history.event_counts, (std::map<std::string, std::int64_t>{{"start", 1}}));
}

TEST_F(RunHistory, RestartsAndRollbacksAreMarksBetweenTheRows) {
  event("start", 0);
  train(10, 1);
  train(20, 1);
  event("restart", 15);
  train(20, 1);
  event("rollback", 5);
  train(10, 1);
  const History history = read();
  ASSERT_EQ(history.marks.size(), 2u);
  EXPECT_EQ(history.marks[0].kind, "restart");
  EXPECT_EQ(history.marks[0].place, (Place{15, 1.5, 960, 1}));
  EXPECT_EQ(history.marks[1].place, (Place{5, 0.5, 320, 1}));
  EXPECT_TRUE(history.train.begins_part(3));
}

TEST_F(RunHistory, TheFirstRowOfAStartIsNotInTheMeanTimes) {
  event("start", 0);
  train(10, 1);
  train(20, 1);
  event("restart", 10);
  train(20, 1);
  train(40, 1);
  const History history = read();
  EXPECT_EQ(history.steps.count, 30);
  EXPECT_NEAR(history.steps.times.total, 30 * 0.2, 1e-12);
  EXPECT_NEAR(history.steps.times.forward, 30 * 0.1, 1e-12);
}

TEST_F(RunHistory, ALossThatIsNotFiniteIsNotTheLatestOne) {
  train(5, 1);
  add({{"kind", "train"}, {"step", 10}, {"loss", nullptr}, {"rate", 0.1}});
  const History history = read();
  EXPECT_FALSE(history.latest.contains("loss"));
  EXPECT_EQ(history.latest.at("rate"), 0.1);
}

TEST_F(RunHistory, RecentStepsAreThoseOfTheLatestStart) {
  for (int step = 10; step <= 40; step += 10) train(step, 1);
  event("restart", 40);
  train(50, 1);
  train(60, 1);
  const History history = read();
  EXPECT_EQ(history.steps.count, 40);
  EXPECT_EQ(history.recent_steps.count, 10);
}

TEST_F(RunHistory, ManyEventsAreCountedAndTheFirstAndLastAreKept) {
  for (int i = 0; i < 10'000; ++i) event("skipped_step", i);
  const History history = read();
  EXPECT_EQ(history.event_counts.at("skipped_step"), 10'000);
  EXPECT_EQ(history.events, 10'000);
  EXPECT_EQ(history.first_events.size(), 100u);
  EXPECT_EQ(history.last_events.size(), 100u);
  EXPECT_EQ(history.last_events.back().step, 9999);
}

TEST_F(RunHistory, RowsOfStrangersAreBounded) {
  for (int i = 0; i < 1000; ++i) {
    add({{"kind", "evaluate"}, {"step", 1}, {"split", std::to_string(i)}, {"loss", 1}});
    event(std::to_string(i).c_str(), 1);
    event("restart", i);
  }
  add({{"kind", "train"}, {"step", "one"}, {"loss", 1}});
  add({{"kind", 7}, {"step", 1}});
  add({{"kind", "train"}, {"step", 1e300}, {"loss", 1}});
  add({{"kind", "train"}, {"step", 1}, {"loss", 1e300}});
  const History history = read();
  EXPECT_EQ(history.evaluations.size(), 8u);
  EXPECT_EQ(history.event_counts.size(), 64u);
  EXPECT_EQ(history.marks.size(), 50u);
  EXPECT_EQ(history.train.buckets(), 1u);
  EXPECT_EQ(history.train.whole_range(0).high, 1e300);
}

}  // namespace
}  // namespace trireme::report
