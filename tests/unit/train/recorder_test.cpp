// The rows that a recorder writes.

#include "trireme/train/recorder.hpp"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "support/scratch.hpp"

namespace trireme::train {
namespace {

std::vector<nlohmann::json> train_rows(const std::string& path) {
  std::vector<nlohmann::json> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    rows.push_back(nlohmann::json::parse(line));
    if (rows.back()["kind"] != "train") rows.pop_back();
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
  const std::vector<nlohmann::json> rows = train_rows(folder / "metrics.jsonl");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["transfer_s"], 0.25);
  EXPECT_EQ(rows[1]["transfer_s"], 0.5);
}

}  // namespace
}  // namespace trireme::train
