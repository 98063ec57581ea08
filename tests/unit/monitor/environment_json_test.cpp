#include "trireme/monitor/environment_json.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"

namespace trireme::monitor {
namespace {

EnvironmentEntry entry_of(const std::string& time) {
  EnvironmentEntry entry;
  entry.time = time;
  entry.version = "0.1.0";
  entry.hosts = {"node1", "node1", "node2"};
  entry.devices = {"cuda:0", "cuda:1", "cuda:0"};
  return entry;
}

TEST(EnvironmentJson, OneEntryAStartAndNothingThatIsNotKnown) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  append_environment(path, entry_of("first"));
  append_environment(path, entry_of("second"));
  const auto json = nlohmann::json::parse(contents(path));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["time"], "first");
  EXPECT_EQ(json[1]["time"], "second");
  EXPECT_EQ(json[1]["hosts"], nlohmann::json({"node1", "node1", "node2"}));
  EXPECT_EQ(json[1]["devices"], nlohmann::json({"cuda:0", "cuda:1", "cuda:0"}));
  EXPECT_EQ(json[1]["ranks"], 3);
  EXPECT_FALSE(json[1].contains("cuda"));
}

TEST(EnvironmentJson, EntriesOfOtherVersionsAreKept) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  write_text(path, R"([{"time": "old", "unknown": {"a": 1}}])");
  append_environment(path, entry_of("new"));
  const auto json = nlohmann::json::parse(contents(path));
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["unknown"]["a"], 1);
}

TEST(EnvironmentJson, ADamagedFileIsKeptAside) {
  const ScratchFolder folder;
  const std::string path = folder / "environment.json";
  write_text(path, R"([{"time": "old")");
  append_environment(path, entry_of("new"));
  EXPECT_EQ(nlohmann::json::parse(contents(path)).size(), 1u);
  EXPECT_EQ(contents(path + ".damaged"), R"([{"time": "old")");
}

}  // namespace
}  // namespace trireme::monitor
