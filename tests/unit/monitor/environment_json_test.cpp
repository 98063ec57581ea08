// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/environment_json.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"

namespace trireme::monitor {
namespace {

Log quiet(false);

EnvironmentEntry entry_of(const std::string& time) {
  EnvironmentEntry entry;
  entry.time = time;
  entry.software = {{"version", "0.1.0"}, {"cuda", ""}};
  entry.hosts = {"node1", "node1", "node2"};
  entry.devices = {"cuda:0", "cuda:1", "cuda:0"};
  return entry;
}

TEST(EnvironmentJson, OneEntryAStartAndNothingThatIsNotKnown) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  append_environment(RunFolder(folder.path()), entry_of("first"), quiet);
  append_environment(RunFolder(folder.path()), entry_of("second"), quiet);
  const auto json = nlohmann::json::parse(contents(path));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["time"], "first");
  EXPECT_EQ(json[1]["time"], "second");
  EXPECT_EQ(json[1]["hosts"], nlohmann::json({"node1", "node1", "node2"}));
  EXPECT_EQ(json[1]["devices"], nlohmann::json({"cuda:0", "cuda:1", "cuda:0"}));
  EXPECT_EQ(json[1]["ranks"], 3);
  EXPECT_EQ(json[1]["version"], "0.1.0");
  EXPECT_FALSE(json[1].contains("cuda"));
}

TEST(EnvironmentJson, EntriesOfOtherVersionsAreKept) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  write_text(path, R"([{"time": "old", "unknown": {"a": 1}}])");
  append_environment(RunFolder(folder.path()), entry_of("new"), quiet);
  const auto json = nlohmann::json::parse(contents(path));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["unknown"]["a"], 1);
}

TEST(EnvironmentJson, AFileThatCannotBeReadIsKeptAside) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  const std::string deep(100'000, '[');
  std::vector<std::string> kept;
  for (const std::string& text : {std::string(R"([{"time": "old")"), deep, std::string("{}"),
                                  std::string("[]") + std::string(std::size_t{17} << 20, ' ')}) {
    write_text(path, text);
    append_environment(RunFolder(folder.path()), entry_of("new"), quiet);
    EXPECT_EQ(nlohmann::json::parse(contents(path)).size(), 1u);
    kept.push_back(path + ".damaged" + (kept.empty() ? "" : fmt::format(".{}", kept.size() + 1)));
    EXPECT_EQ(contents(kept.back()), text);
  }
}

TEST(EnvironmentJson, AFullFileIsKeptAsideBeforeItCannotBeRead) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  EnvironmentEntry large = entry_of("large");
  large.job = std::string(std::size_t{9} << 20, 'x');
  append_environment(RunFolder(folder.path()), large, quiet);
  append_environment(RunFolder(folder.path()), large, quiet);
  EXPECT_EQ(nlohmann::json::parse(contents(path)).size(), 1u);
  EXPECT_EQ(nlohmann::json::parse(contents(path + ".damaged")).size(), 1u);
}

}  // namespace
}  // namespace trireme::monitor
