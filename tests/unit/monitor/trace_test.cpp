// SPDX-License-Identifier: Apache-2.0
//
// Traces: recorded steps, lanes, the Trace Event Format, ranges of other threads, the ring buffer,
// and no allocation while recording.

#include "trireme/monitor/trace.hpp"

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"
#include "support/count_allocations.hpp"

namespace trireme::monitor {
namespace {

constexpr std::string_view lane = Trace::step_lane;

/// Returns the objects of a trace.
nlohmann::json objects_of(const Trace& trace) {
  return nlohmann::json::parse("[" + trace.json() + "]");
}

/// Returns the events of a trace, without the names of processes and threads.
std::vector<nlohmann::json> events_of(const Trace& trace) {
  std::vector<nlohmann::json> events;
  for (const auto& object : objects_of(trace))
    if (object["ph"] != "M") events.push_back(object);
  return events;
}

/// Returns the names of threads by number.
std::map<int, std::string> threads_of(const Trace& trace) {
  std::map<int, std::string> names;
  for (const auto& object : objects_of(trace))
    if (object["name"] == "thread_name") names[object["tid"]] = object["args"]["name"];
  return names;
}

TEST(Trace, ADefaultMadeOneRecordsNothing) {
  Trace trace;
  trace.begin_step(0);
  EXPECT_FALSE(trace.is_recording());
  trace.record_event(lane, "forward", 0, 1);
  const ProfileRange range("trireme/test/range", "readers");
  EXPECT_EQ(trace.json(), "");
}

TEST(Trace, RecordsTheStepsAskedForAndNoOthers) {
  Trace trace(0, StepRange{10, 12});
  for (std::int64_t step = 8; step <= 14; ++step) {
    trace.begin_step(step);
    EXPECT_EQ(trace.is_recording(), step >= 10 && step <= 12) << step;
    trace.record_event(lane, "forward", static_cast<double>(step), static_cast<double>(step) + 0.5);
    const ProfileRange range("trireme/data/read", "readers");
  }
  std::map<std::string, std::vector<int>> steps;
  for (const auto& event : events_of(trace)) steps[event["name"]].push_back(event["args"]["step"]);
  const std::vector<int> recorded{10, 11, 12};
  EXPECT_EQ(steps, (decltype(steps){{"forward", recorded}, {"read", recorded}}));
}

// Checks the Trace Event Format: complete events, times in microseconds.
TEST(Trace, EventsAreThoseOfTheTraceEventFormat) {
  Trace trace(3, StepRange{1, 1});
  trace.begin_step(1);
  trace.record_event(lane, "backward", 1000.000002, 1000.0250025,
                     {{{"micro_batch", 5}, {"chunk", 1}}});
  trace.record_event(lane, "a \"name\" of more than 23 letters", 1001, 1002);
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0]["name"], "backward");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["pid"], 3);
  EXPECT_EQ(events[0]["tid"], 3);                                  // The main thread.
  EXPECT_NEAR(events[0]["ts"].get<double>(), 1000000002.0, 1e-3);  // in ns
  EXPECT_NEAR(events[0]["dur"].get<double>(), 25000.5, 2e-3);
  EXPECT_EQ(events[0]["args"], (nlohmann::json{{"step", 1}, {"micro_batch", 5}, {"chunk", 1}}));
  EXPECT_EQ(events[1]["name"], "a \"name\" of more than 2");
  EXPECT_EQ(events[1]["args"], (nlohmann::json{{"step", 1}}));
  const auto objects = objects_of(trace);
  EXPECT_EQ(
      objects[0],
      (nlohmann::json{
          {"name", "process_name"}, {"ph", "M"}, {"pid", 3}, {"args", {{"name", "rank 3"}}}}));
}

// Exchanges of a group that overlap are on threads of their own: a viewer would nest them.
TEST(Trace, ExchangesAreInTheLaneOfTheirGroup) {
  Trace trace(2, StepRange{4, 4});
  trace.record_exchange("data", "not_recorded", 0, 1);
  trace.begin_step(4);
  trace.record_exchange("data", "reduce_bucket", 1000, 1000.5, {{{"bucket", 1}}});
  trace.record_event(lane, "forward", 1000.1, 1000.2);
  trace.record_exchange("data", "reduce_bucket", 1000.25, 1000.75, {{{"micro-batch", 2}}});
  trace.record_exchange("tensor", "tensor_gather", 1000.3, 1000.4);
  trace.record_exchange("data", "gather_bucket", 1000.5, 1000.6);
  std::vector<std::string> places;
  const auto threads = threads_of(trace);
  for (const auto& event : events_of(trace)) {
    EXPECT_EQ(event["ph"], "X");
    EXPECT_EQ(event["pid"], 2);
    EXPECT_EQ(event.value("cat", "none"), event["name"] == "forward" ? "none" : "exchange");
    places.push_back(event["name"].get<std::string>() + " in " + threads.at(event["tid"]));
  }
  EXPECT_EQ(places,
            (std::vector<std::string>{
                "forward in step", "reduce_bucket in group data", "reduce_bucket in group data 2",
                "gather_bucket in group data", "tensor_gather in group tensor"}));
  const auto events = events_of(trace);
  EXPECT_EQ(events[1]["args"], (nlohmann::json{{"step", 4}, {"bucket", 1}}));
  EXPECT_EQ(events[2]["args"], (nlohmann::json{{"step", 4}, {"micro_batch", 2}}));
  EXPECT_NEAR(events[2]["dur"].get<double>(), 500000.0, 2e-3);
}

TEST(Trace, WaitsAreOnAThreadOfTheirOwn) {
  Trace trace(1, StepRange{4, 4});
  trace.begin_step(4);
  trace.record_wait("reduce_bucket", 1000, 1000.5, {{{"bucket", 7}}});
  const auto events = events_of(trace);
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0]["name"], "wait");
  EXPECT_EQ(events[0]["ph"], "X");
  EXPECT_EQ(events[0]["args"],
            (nlohmann::json{{"step", 4}, {"for", "reduce_bucket"}, {"bucket", 7}}));
  EXPECT_EQ(threads_of(trace), (std::map<int, std::string>{{events[0]["tid"], "waits"}}));
  EXPECT_NEAR(events[0]["dur"].get<double>(), 500000.0, 2e-3);
}

// Other threads record while the main thread does.
TEST(Trace, RangesOfAllThreadsThatNameALaneAreRecorded) {
  constexpr int num_threads = 3, ranges = 100;
  Trace trace(0, StepRange{1, 1});
  trace.begin_step(1);
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i)
    threads.emplace_back([] {
      for (int range = 0; range < ranges; ++range) {
        const ProfileRange hidden("trireme/data/decode");
        const ProfileRange shown("trireme/data/read", "readers");
      }
    });
  for (int i = 0; i < ranges; ++i) trace.record_event(lane, "forward", i, i + 1);
  for (std::thread& thread : threads) thread.join();
  std::map<std::string, int> counts;
  std::map<int, double> ends;
  for (const auto& event : events_of(trace)) {
    ++counts[event["name"]];
    const double begin = event["ts"], end = begin + event["dur"].get<double>();
    EXPECT_GE(begin, ends[event["tid"]] - 1e-4);  // Nothing overlaps on a thread.
    ends[event["tid"]] = end;
  }
  EXPECT_EQ(counts,
            (std::map<std::string, int>{{"forward", ranges}, {"read", num_threads * ranges}}));
}

TEST(Trace, OfTooManyEventsTheLatestAreKeptInOrder) {
  Trace trace(0, StepRange{1, 1}, 4);
  trace.begin_step(1);
  for (int i = 0; i < 10; ++i)
    trace.record_event(lane, "forward", i, i + 1, {{{"micro_batch", i}}});
  std::vector<int> kept;
  for (const auto& event : events_of(trace)) kept.push_back(event["args"]["micro_batch"]);
  EXPECT_EQ(kept, (std::vector<int>{6, 7, 8, 9}));
}

TEST(Trace, RecordingAllocatesNothing) {
  Trace trace(0, StepRange{1, 2}, 16);
  trace.begin_step(1);
  const std::int64_t before = allocations_so_far();
  for (std::int64_t step = 1; step <= 2; ++step) {
    trace.begin_step(step);
    for (int i = 0; i < 40; ++i) {
      trace.record_event(lane, "forward of a long name that no string holds in itself", i, i + 1);
      const ProfileRange range("trireme/test/a_long_name_that_no_string_holds_in_itself",
                               "readers");
    }
  }
  EXPECT_EQ(allocations_so_far(), before);
}

TEST(Trace, TheFileHoldsTheEventsOfAllRanks) {
  const ScratchFolder folder;
  std::vector<std::string> parts;
  for (int rank = 0; rank < 3; ++rank) {
    Trace trace(rank, StepRange{1, 1});
    trace.begin_step(1);
    if (rank != 1) {  // One rank has no events.
      trace.record_event(lane, "forward", rank, rank + 1);
      trace.record_wait("step_status", rank, rank + 1);
    }
    parts.push_back(trace.json());
  }
  write_trace(folder / "trace.json", parts);
  std::vector<int> ranks;
  std::set<int> threads;
  for (const auto& object : nlohmann::json::parse(contents(folder / "trace.json")))
    if (object["ph"] == "X") {
      ranks.push_back(object["pid"]);
      threads.insert(object["tid"].get<int>());
    }
  EXPECT_EQ(ranks, (std::vector<int>{0, 0, 2, 2}));
  // Perfetto takes a thread for the same one wherever its number comes.
  EXPECT_EQ(threads.size(), 4u);
  write_trace(folder / "trace.json", {});
  EXPECT_TRUE(nlohmann::json::parse(contents(folder / "trace.json")).empty());
}

}  // namespace
}  // namespace trireme::monitor
