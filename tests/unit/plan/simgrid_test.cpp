// SPDX-License-Identifier: Apache-2.0
//
// Tests write_replay and simgrid_platform (plan/proof/simgrid.hpp): traces have the format of
// SimGrid's replay, every message has its receiver, and nothing of the step is lost.
#include "trireme/plan/proof/simgrid.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/replica.hpp"
#include "trireme/base/check.hpp"
#include "trireme/plan/costs.hpp"
#include "trireme/plan/step_record.hpp"

namespace trireme::plan {
namespace {

using testing::HasSubstr;

using parallel::MeshGroup;

/// One line of a trace: the process, the action, and its arguments.
struct Line {
  int process = -1;
  std::string action;
  std::vector<double> numbers;
};

/// The files of a replay by path.
using Files = std::map<std::string, std::string>;

std::vector<Line> lines_of(const std::string& text) {
  std::vector<Line> lines;
  std::istringstream stream(text);
  for (std::string row; std::getline(stream, row);) {
    std::istringstream words(row);
    Line& line = lines.emplace_back();
    words >> line.process >> line.action;
    for (double number; words >> number;) line.numbers.push_back(number);
    EXPECT_TRUE(words.eof()) << row;
  }
  return lines;
}

class SimgridTest : public testing::Test {
 protected:
  static constexpr double op_seconds = 1e-3;

  void record(parallel::MeshShape shape, DeviceKind device = DeviceKind::cuda,
              bool deterministic = false) {
    options.accumulation = 3;
    options.global = options.micro * shape.data * options.accumulation;
    options.deterministic = deterministic;
    programs = record_programs(options, shape, device, {}, RecordedRanks::places,
                               [](const ops::OpCall&) { return op_seconds; });
  }

  Replay write(const SimgridNetwork& network = {}, std::string_view group = {}) {
    files.clear();
    traces.clear();
    Replay replay = write_replay(programs, machine, network, group,
                                 [&](const std::string& path, std::string_view text) {
                                   EXPECT_TRUE(files.emplace(path, text).second) << path;
                                 });
    for (int process = 0; process < replay.processes; ++process)
      traces.push_back(lines_of(files["traces/" + std::to_string(process) + ".txt"]));
    return replay;
  }

  /// Checks all lines: each process has an own trace, known actions, and waits for messages that it
  /// has started; all sends have equal receives in the same order. A stream signals the end of a
  /// request before it takes the next one.
  void check_traces() const {
    std::map<std::tuple<int, int, int>, std::vector<std::vector<double>>> sent, received;
    for (std::size_t process = 0; process < traces.size(); ++process) {
      const std::vector<Line>& trace = traces[process];
      ASSERT_GE(trace.size(), 2U);
      EXPECT_EQ(trace.front().action, "init");
      EXPECT_EQ(trace.back().action, "finalize");
      std::set<std::tuple<int, int, int>> started;
      int taken = -1;  // request of a stream
      for (const Line& line : trace) {
        EXPECT_EQ(line.process, static_cast<int>(process));
        const auto at = [&](std::size_t i) { return static_cast<int>(line.numbers.at(i)); };
        const auto rest = [&](std::size_t i) {
          return std::vector<double>(line.numbers.begin() + static_cast<std::ptrdiff_t>(i),
                                     line.numbers.end());
        };
        if (line.process >= programs.shape.ranks() && !line.numbers.empty() &&
            at(0) < programs.shape.ranks()) {
          if (line.action == "recv") taken = at(1);
          if (line.action == "send") {
            EXPECT_EQ(at(1), taken);
          }
        }
        if (line.action == "send" || line.action == "isend") {
          sent[{line.process, at(0), at(1)}].push_back(rest(2));
          if (line.action == "isend") started.emplace(line.process, at(0), at(1));
        } else if (line.action == "recv" || line.action == "irecv") {
          received[{at(0), line.process, at(1)}].push_back(rest(2));
          if (line.action == "irecv") started.emplace(at(0), line.process, at(1));
        } else if (line.action == "sendRecv") {
          ASSERT_EQ(line.numbers.size(), 6U);
          sent[{line.process, at(1), 0}].push_back({line.numbers[0], line.numbers[4]});
          received[{at(3), line.process, 0}].push_back({line.numbers[2], line.numbers[5]});
        } else if (line.action == "wait") {
          EXPECT_EQ(started.erase({at(0), at(1), at(2)}), 1U);
        } else {
          EXPECT_TRUE(line.action == "compute" || line.action == "init" ||
                      line.action == "finalize")
              << line.action;
        }
      }
      EXPECT_TRUE(started.empty());
    }
    EXPECT_EQ(sent, received);
    EXPECT_FALSE(sent.empty());
  }

  double computed_flops(int process) const {
    double flops = 0;
    for (const Line& line : traces[static_cast<std::size_t>(process)])
      if (line.action == "compute") flops += line.numbers.at(0);
    return flops;
  }

  train::ReplicaOptions options = test::small_gpt(4);
  Machine machine = read_machine("a100");
  RankPrograms programs;
  Files files;
  std::vector<std::vector<Line>> traces;
};

TEST_F(SimgridTest, TheEstimateIsNearTheBytes) {
  for (const parallel::MeshShape& shape : {parallel::MeshShape{.data = 4, .tensor = 2},
                                           {.data = 24, .pipeline = 2},
                                           {.data = 12, .pipeline = 2},
                                           {.data = 10, .pipeline = 3},
                                           {.data = 8, .tensor = 4}}) {
    record(shape);
    const ReplaySize estimate = estimate_replay(programs, machine, {}, {});
    const Replay replay = write();
    EXPECT_EQ(estimate.files, std::ssize(files));
    const double ratio = static_cast<double>(estimate.bytes) / static_cast<double>(replay.bytes);
    EXPECT_NEAR(ratio, 1, shape.ranks() <= 16 ? 1e-9 : 0.05);
  }
}

TEST_F(SimgridTest, EveryMessageHasItsReceiver) {
  const parallel::MeshShape shape{.data = 4, .tensor = 4, .pipeline = 2};
  for (const bool deterministic : {false, true}) {
    record(shape, DeviceKind::cuda, deterministic);
    const Replay replay = write();
    // Streams for world, data and tensor on each rank.
    EXPECT_EQ(replay.ranks, 32);
    EXPECT_EQ(replay.nodes, 4);
    EXPECT_EQ(replay.processes % 32, 0);
    EXPECT_GE(replay.processes, 4 * 32);
    check_traces();
  }
}

TEST_F(SimgridTest, ComputesAllOpsOfTheStep) {
  // Six layers in four stages: calls of the stages in the middle are equal, but not their ops.
  options.model.as<model::TransformerOptions>().layers = 6;
  for (const parallel::MeshShape shape :
       {parallel::MeshShape{.data = 4, .tensor = 4, .pipeline = 2},
        parallel::MeshShape{.pipeline = 4}}) {
    record(shape);
    write();
    for (int rank = 0; rank < shape.ranks(); rank += shape.data * shape.tensor) {
      const std::vector<std::int64_t> counts =
          record_step(options, shape, rank, DeviceKind::cuda).counts;
      const double seconds = op_seconds * static_cast<double>(std::accumulate(
                                              counts.begin(), counts.end(), std::int64_t{0}));
      EXPECT_GT(seconds, 10 * op_seconds);
      EXPECT_NEAR(computed_flops(rank), 1e9 * seconds, 1e4 * seconds) << rank;
    }
  }
}

TEST_F(SimgridTest, TimesOfOpsRecordNoFurtherRanks) {
  // Data ranks update parts of different sizes.
  options.shard = parallel::ShardKind::optimizer;
  const parallel::MeshShape shape{.data = 7};
  const auto ranks_with = [&](const OpSeconds& seconds) {
    return record_programs(options, shape, DeviceKind::cuda, {}, RecordedRanks::places, seconds)
        .recorded_ranks;
  };
  EXPECT_EQ(ranks_with([](const ops::OpCall& op) { return op.bytes; }), ranks_with({}));
}

TEST_F(SimgridTest, AGroupHasItsMessagesAlone) {
  record({.data = 4, .tensor = 4, .pipeline = 2});
  for (const MeshGroup group : {MeshGroup::data, MeshGroup::tensor, MeshGroup::pipeline}) {
    SCOPED_TRACE(group_name(group));
    const Replay replay = write({}, group_name(group));
    // Each rank has a stream to send to the other stage, and one to receive from it.
    EXPECT_EQ(replay.processes, group == MeshGroup::pipeline ? 3 * 32 : 32);
    check_traces();
    if (group == MeshGroup::pipeline) continue;
    const std::vector<int> members = ranks_of_group(programs.shape, 0, group);
    for (const Line& line : traces[0]) {
      EXPECT_NE(line.action, "compute");
      const std::size_t peer = line.action == "sendRecv" ? 1 : 0;
      if (line.numbers.size() <= peer || line.action == "wait") continue;
      EXPECT_EQ(std::count(members.begin(), members.end(), static_cast<int>(line.numbers[peer])),
                1);
    }
  }
}

TEST_F(SimgridTest, TreeOrderHalvesInPairs) {
  // Gradients of n bytes: a rank sends n / 2 to its first partner, then n / 4.
  record({.data = 4, .tensor = 1, .pipeline = 1}, DeviceKind::cuda, true);
  write({}, "data");
  check_traces();
  std::vector<double> partners, counts;
  for (const Line& line : traces[1]) {
    if (line.action != "sendRecv") continue;
    counts.push_back(line.numbers[0]);
    partners.push_back(line.numbers[1]);
  }
  ASSERT_GE(counts.size(), 4U);
  EXPECT_EQ(std::vector<double>(partners.begin(), partners.begin() + 4),
            (std::vector<double>{0, 3, 3, 0}));
  EXPECT_NEAR(counts[0], 2 * counts[1], 8);
  EXPECT_NEAR(counts[3], counts[0], 8);
}

TEST_F(SimgridTest, ACpuRankCarriesOutItsRequests) {
  machine.device.kind = MachineKind::cpu;
  record({.data = 4, .tensor = 2, .pipeline = 2}, DeviceKind::cpu);
  const Replay replay = write();
  EXPECT_EQ(replay.processes, 16);
  EXPECT_EQ(replay.nodes, 1);
  check_traces();
}

TEST_F(SimgridTest, DescribesTheNetwork) {
  const auto platform = [&](const SimgridNetwork& network, int ranks = 4096) {
    return simgrid_platform(machine, ranks, network);
  };
  // 512 nodes: 16 leaf switches of 32 nodes, 32 spines without taper.
  EXPECT_THAT(platform({}), HasSubstr("FAT_TREE\" topo_parameters=\"2;32,16;1,32;1,1\""));
  EXPECT_THAT(platform({.taper = 4}), HasSubstr("\"2;32,16;1,8;1,1\""));
  EXPECT_THAT(platform({}), HasSubstr("radical=\"0-511\""));
  // Eight interfaces of 25 GB/s; half of 14 us on each of two links.
  EXPECT_THAT(platform({}), HasSubstr("bw=\"2e+11Bps\" lat=\"7e-06s\""));
  // 16 groups of 32 nodes; 32 / 15 links to each other group, rounded up.
  EXPECT_THAT(platform({.topology = SimgridNetwork::Topology::dragonfly}),
              HasSubstr("\"16,3;1,1;16,1;2\""));
  EXPECT_THROW(platform({.taper = 3}), InputError);
  EXPECT_THROW(platform({.taper = 0}), InputError);
  machine.network = {};
  EXPECT_NO_THROW(platform({}, 8));
  EXPECT_THROW(platform({}, 16), InputError);
}

TEST_F(SimgridTest, RefusesAGroupWithoutCalls) {
  record({.data = 4, .tensor = 1, .pipeline = 1});
  EXPECT_THROW(write({}, "tensor"), InputError);
}

}  // namespace
}  // namespace trireme::plan
