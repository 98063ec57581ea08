// SPDX-License-Identifier: Apache-2.0
//
// Traces: recorded steps, the Trace Event Format, the ring buffer, and no allocation while
// recording.

#include "trireme/monitor/trace.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"
#include "support/count_allocations.hpp"

namespace trireme::monitor {
namespace {

nlohmann::json events_of(const Trace& trace) {
  return nlohmann::json::parse("[" + trace.json() + "]");
}

TEST(Trace, ADefaultMadeOneRecordsNothing) {
  Trace trace;
  trace.begin_step(0);
  EXPECT_FALSE(trace.is_recording());
  trace.record_event("forward", 0, 1, 0, 0);
  EXPECT_EQ(trace.json(), "");
}

TEST(Trace, RecordsTheStepsAskedForAndNoOthers) {
  Trace trace(0, 10, 12);
  for (std::int64_t step = 8; step <= 14; ++step) {
    trace.begin_step(step);
    EXPECT_EQ(trace.is_recording(), step >= 10 && step <= 12) << step;
    trace.record_event("forward", static_cast<double>(step), static_cast<double>(step) + 0.5);
  }
  std::vector<int> steps;
  for (const auto& event : events_of(trace)) steps.push_back(event["args"]["step"]);
  EXPECT_EQ(steps, (std::vector<int>{10, 11, 12}));
}

// Checks the Trace Event Format: complete events, times in microseconds.
TEST(Trace, EventsAreThoseOfTheTraceEventFormat) {
  Trace trace(3, 1, 1);
  trace.begin_step(1);
  trace.record_event("backward", 1000.000002, 1000.0250025, 5, 1);
  trace.record_event("a \"name\" of more than 23 letters", 1001, 1002);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "backward");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["pid"], 3);
  EXPECT_EQ(events[0]["tid"], 0);
  EXPECT_NEAR(events[0]["ts"].get<double>(), 1000000002.0, 1e-3);  // in ns
  EXPECT_NEAR(events[0]["dur"].get<double>(), 25000.5, 2e-3);
  EXPECT_EQ(events[0]["args"], (nlohmann::json{{"step", 1}, {"micro_batch", 5}, {"chunk", 1}}));
  EXPECT_EQ(events[1]["name"], "a \"name\" of more than 2");
  EXPECT_EQ(events[1]["args"], (nlohmann::json{{"step", 1}}));
}

// An asynchronous event is a pair with an id that no other pair has.
TEST(Trace, BackgroundWorkIsAPairOfEvents) {
  Trace trace(2, 4, 4);
  trace.record_async_event("not recorded", 0, 1);
  trace.begin_step(4);
  trace.record_async_event("reduce_bucket", 1000, 1000.5);
  trace.record_event("forward", 1000.1, 1000.2);
  trace.record_async_event("reduce_bucket", 1000.25, 1000.75);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 5u);
  for (const std::size_t first : {0u, 3u}) {
    EXPECT_EQ(events[first]["ph"], "b");
    EXPECT_EQ(events[first + 1]["ph"], "e");
    for (const char* key : {"name", "cat", "id", "pid", "args"})
      EXPECT_EQ(events[first][key], events[first + 1][key]) << key;
    EXPECT_EQ(events[first]["name"], "reduce_bucket");
    EXPECT_EQ(events[first]["pid"], 2);
    EXPECT_EQ(events[first]["args"], (nlohmann::json{{"step", 4}}));
    EXPECT_NEAR(events[first + 1]["ts"].get<double>() - events[first]["ts"].get<double>(), 500000.0,
                2e-3);
  }
  EXPECT_NE(events[0]["id"], events[3]["id"]);
  EXPECT_EQ(events[2]["ph"], "X");
}

TEST(Trace, WaitsAreOnAThreadOfTheirOwn) {
  Trace trace(1, 4, 4);
  trace.begin_step(4);
  trace.record_wait("reduce_bucket", 1000, 1000.5);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "wait");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["tid"], 1);
  EXPECT_EQ(events[0]["args"], (nlohmann::json{{"step", 4}, {"for", "reduce_bucket"}}));
  EXPECT_EQ(events[1]["name"], "thread_name");
  EXPECT_EQ(events[1]["ph"], "M");
  EXPECT_EQ(events[1]["pid"], 1);
  EXPECT_EQ(events[1]["tid"], 1);
  EXPECT_EQ(events[1]["args"]["name"], "waits");
  EXPECT_NEAR(events[0]["dur"].get<double>(), 500000.0, 2e-3);
}

TEST(Trace, OfTooManyEventsTheLatestAreKeptInOrder) {
  Trace trace(0, 1, 1, 4);
  trace.begin_step(1);
  for (int i = 0; i < 10; ++i) trace.record_event("forward", i, i + 1, i);
  std::vector<int> kept;
  for (const auto& event : events_of(trace)) kept.push_back(event["args"]["micro_batch"]);
  EXPECT_EQ(kept, (std::vector<int>{6, 7, 8, 9}));
}

TEST(Trace, RecordingAllocatesNothing) {
  Trace trace(0, 1, 2, 16);
  const std::int64_t before = allocations_so_far();
  for (std::int64_t step = 1; step <= 2; ++step) {
    trace.begin_step(step);
    for (int i = 0; i < 40; ++i)
      trace.record_event("forward of a long name that no string holds in itself", i, i + 1, i, 0);
  }
  EXPECT_EQ(allocations_so_far(), before);
}

TEST(Trace, TheFileHoldsTheEventsOfAllRanks) {
  const ScratchFolder folder;
  std::vector<std::string> parts;
  for (int rank = 0; rank < 3; ++rank) {
    Trace trace(rank, 1, 1);
    trace.begin_step(1);
    if (rank != 1) trace.record_event("forward", rank, rank + 1);  // one rank has no events
    parts.push_back(trace.json());
  }
  write_trace(folder / "trace.json", parts);
  const auto events = nlohmann::json::parse(contents(folder / "trace.json"));
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["pid"], 0);
  EXPECT_EQ(events[1]["pid"], 2);
  write_trace(folder / "trace.json", {});
  EXPECT_TRUE(nlohmann::json::parse(contents(folder / "trace.json")).empty());
}

}  // namespace
}  // namespace trireme::monitor
