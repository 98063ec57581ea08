// SPDX-License-Identifier: Apache-2.0
//
// The rows that a recorder writes.

#include "train/records/recorder.hpp"

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/scratch.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;

std::vector<nlohmann::json> rows_of(const std::string& path, const std::string& kind) {
  std::vector<nlohmann::json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    rows.push_back(nlohmann::json::parse(line));
    if (rows.back()["kind"] != kind) rows.pop_back();
  }
  return rows;
}

StepResult result_with_transfer(double seconds) {
  StepResult result;
  result.times.transfer = seconds;
  result.times.total = 1;
  return result;
}

TEST(Recorder, TransferTimeIsTheMeanSinceTheRowBefore) {
  const test::ScratchFolder folder;
  Log log(false);
  Recorder recorder({.run_folder = folder.path(), .tensorboard = false, .device = {}}, log);
  RunState state;
  for (const std::vector<double>& steps : {std::vector{0.125, 0.375}, {0.5, 0.25, 0.75}}) {
    for (const double seconds : steps) recorder.step(state, result_with_transfer(seconds));
    recorder.train_row(state, result_with_transfer(steps.back()), {.learning_rate = 0.1});
  }
  const std::vector<nlohmann::json> rows = rows_of(folder / "metrics.jsonl", "train");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["transfer_s"], 0.25);
  EXPECT_EQ(rows[1]["transfer_s"], 0.5);
}

TEST(Recorder, UtilizationIsThatOfTheMeanStep) {
  for (const double peak : {8e12, 0.0}) {
    const test::ScratchFolder folder;
    Log log(false);
    Recorder recorder({.run_folder = folder.path(),
                       .tensorboard = false,
                       .device = {},
                       .flops_per_rank = 3e12,
                       .prediction = {.machine = "made_up", .peak_flops = peak}},
                      log);
    RunState state;
    StepResult result;
    for (const double seconds : {1.0, 0.5}) {
      result.times.total = seconds;
      recorder.step(state, result);
    }
    recorder.train_row(state, result, {.learning_rate = 0.1});
    const nlohmann::json row = rows_of(folder / "metrics.jsonl", "train").at(0);
    EXPECT_EQ(row["tflops_per_rank"], 4);
    EXPECT_EQ(row.value("mfu", -1.0), peak > 0 ? 0.5 : -1.0);
  }
}

/// Returns the lines of memory in use that a recorder has logged.
std::vector<std::string> memory_lines(const std::string& path) {
  std::vector<std::string> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);)
    if (line.find("memory in use") != std::string::npos) lines.push_back(line);
  return lines;
}

TEST(Recorder, MemoryInUseIsThatOfTheNewestReport) {
  const test::ScratchFolder folder;
  Log log;
  log.open_file(folder / "log.txt");
  Recorder recorder({.run_folder = folder.path(), .memory_bytes = 1 << 20, .device = {}}, log);
  RunState state;
  recorder.train_row(state, {}, {});
  for (const std::int64_t host : {1000, 1099, 1200, 900}) {
    recorder.set_rank_figures({.memory = {.device_bytes = {}, .host_bytes = host}}, {"a"});
    recorder.train_row(state, {}, {});
  }
  recorder.set_rank_figures({.memory = {.device_bytes = 5 << 20, .host_bytes = 900}}, {"a"});
  recorder.train_row(state, {}, {});
  log.flush();
  const std::vector<nlohmann::json> rows = rows_of(folder / "metrics.jsonl", "train");
  ASSERT_EQ(rows.size(), 6u);
  EXPECT_FALSE(rows[0].contains("memory_host_bytes"));
  EXPECT_EQ(rows[2]["memory_host_bytes"], 1099);
  EXPECT_FALSE(rows[4].contains("memory_device_bytes"));
  EXPECT_EQ(rows[4]["memory_host_bytes"], 900);
  EXPECT_EQ(rows[5]["memory_device_bytes"], 5 << 20);
  EXPECT_EQ(rows[5]["memory_bytes"], 1 << 20);
  // Logged at first, and after a growth by more than a tenth.
  const std::vector<std::string> lines = memory_lines(folder / "log.txt");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[2], HasSubstr("device 5.0 MiB, host 900 bytes; planned 1.0 MiB"));
}

TEST(Recorder, RowsHaveTheSpreadOfSensorsAndTheHostOfAnExtreme) {
  const test::ScratchFolder folder;
  Log log;
  Recorder recorder({.run_folder = folder.path(), .device = {}}, log);
  std::vector<RankReport> reports(3);
  for (std::size_t rank = 0; rank < 3; ++rank)
    reports[rank].sensors = {.cpu_percent = 50.0 + 10 * static_cast<double>(rank)};
  reports[1].sensors.gpu_celsius = 70;
  reports[2].sensors.gpu_celsius = 80;
  reports[2].sensors.gpu_throttled = 1;
  recorder.set_rank_figures(figures_of(reports), {"a", "b", "c"});
  recorder.train_row({}, {}, {});
  const nlohmann::json row = rows_of(folder / "metrics.jsonl", "train").front();
  EXPECT_EQ(row["cpu_util_min"], 50);
  EXPECT_EQ(row["cpu_util_mean"], 60);
  EXPECT_EQ(row["cpu_util_max"], 70);
  EXPECT_EQ(row["cpu_util_min_host"], "a");
  EXPECT_FALSE(row.contains("gpu_temp_c"));  // Rank 0 does not know it.
  EXPECT_EQ(row["gpu_temp_c_mean"], 75);     // of the ranks that know it
  EXPECT_EQ(row["gpu_temp_c_max_host"], "c");
  EXPECT_EQ(row["gpus_throttled"], 1);
  EXPECT_EQ(row["gpus_throttled_host"], "c");
  EXPECT_FALSE(row.contains("gpu_power_w_max"));
}

TEST(Recorder, AccountsHaveTheEnergyOfTheDevicesThatKnowIt) {
  const test::ScratchFolder folder;
  Log log;
  const TimeAccount account;
  Recorder recorder({.run_folder = folder.path(),
                     .device = {},
                     .account = &account,
                     .start = {.has_whole_nodes = true}},
                    log);
  recorder.account({}, false);
  std::vector<RankReport> reports(4);
  reports[0].sensors.host_joules = 100;
  reports[0].sensors.host_source = HostEnergy::Source::rapl;
  reports[0].sensors.gpu_joules = 5;
  reports[2].sensors.gpu_joules = 7;
  recorder.set_rank_figures(figures_of(reports), {"a", "a", "a", "a"});
  recorder.account({}, true);
  const auto rows = rows_of(folder / "metrics.jsonl", "account");
  EXPECT_FALSE(rows[0].contains("host_energy_j") || rows[0].contains("gpu_energy_j"));
  EXPECT_EQ(rows[1]["gpu_energy_j"], 12);
  EXPECT_EQ(rows[1]["gpu_energy_gpus"], 2);
  EXPECT_EQ(rows[1]["host_energy_j"], 100);
  EXPECT_EQ(rows[1]["host_energy_hosts"], 1);
  EXPECT_EQ(rows[1]["host_energy_source"], "rapl");
  EXPECT_EQ(rows[1]["host_energy_scope"], "exclusive");
}

TEST(Recorder, UnknownRatiosAreNullAndMissingOnesAreAbsent) {
  const test::ScratchFolder folder;
  Log log(false);
  Recorder recorder({.run_folder = folder.path(), .scale = {.samples_per_step = 32}, .device = {}},
                    log);
  RunState state;
  state.step = 7;
  const double unknown = std::nan("");
  recorder.noise_scale(state, {.gradient_norm_squared = -1, .trace = 2, .samples = unknown}, 8);
  recorder.tensors(state, {{"a", 2, 0.5, 0.25, 3.0}, {"b", 0, 0.5, unknown, {}}});
  const std::vector<nlohmann::json> noise = rows_of(folder / "metrics.jsonl", "noise"),
                                    tensors = rows_of(folder / "metrics.jsonl", "tensors");
  ASSERT_EQ(noise.size(), 1u);
  EXPECT_TRUE(noise[0]["noise_scale"].is_null());
  EXPECT_EQ(noise[0]["trace"], 2);
  EXPECT_EQ(noise[0]["small_batch"], 8);
  EXPECT_EQ(noise[0]["large_batch"], 32);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0]["step"], 7);
  EXPECT_EQ(tensors[0]["tensor"], "a");
  EXPECT_EQ(tensors[0]["update_ratio"], 0.25);
  EXPECT_EQ(tensors[0]["trust_ratio"], 3);
  EXPECT_TRUE(tensors[1]["update_ratio"].is_null());
  EXPECT_FALSE(tensors[1].contains("trust_ratio"));
}

}  // namespace
}  // namespace trireme::train
