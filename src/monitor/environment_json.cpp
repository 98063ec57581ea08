// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/environment_json.hpp"

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/io/damaged_file.hpp"
#include "trireme/io/file.hpp"

namespace trireme::monitor {
namespace {

nlohmann::ordered_json to_json(const EnvironmentEntry& entry) {
  nlohmann::ordered_json json;
  const auto put = [&json](const std::string& key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  put("time", entry.time);
  put("command", entry.command);
  put("deck", entry.deck);
  put("restart", entry.restart);
  put("checkpoint", entry.checkpoint);
  for (const auto& [key, value] : entry.software) put(key, value);
  put("driver", entry.driver);
  put("job", entry.job);
  put("device", entry.device);
  put("layout", entry.layout);
  put("seed", entry.seed);
  json["ranks"] = entry.hosts.size();
  json["hosts"] = entry.hosts;
  json["devices"] = entry.devices;
  return json;
}

/// Returns the entries so far. A file that cannot be read is renamed.
nlohmann::ordered_json earlier_entries(const RunFolder& folder, Log& log) {
  try {
    return folder.read_environment();
  } catch (const InputError& error) {
    io::keep_as_damaged(folder.environment(), error.what(), log);
    return nlohmann::ordered_json::array();
  }
}

std::string text_of(const nlohmann::ordered_json& entries) {
  return entries.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace

void append_environment(const RunFolder& folder, const EnvironmentEntry& entry, Log& log) {
  const std::string path = folder.environment();
  constexpr std::int64_t max_bytes = RunFolder::max_environment_bytes;
  nlohmann::ordered_json entries = earlier_entries(folder, log);
  entries.push_back(to_json(entry));
  std::string text = text_of(entries);
  if (std::ssize(text) > max_bytes && entries.size() > 1) {
    io::keep_as_damaged(
        path, fmt::format("{}: with this start it would exceed {} bytes", path, max_bytes), log);
    text = text_of(nlohmann::ordered_json::array({entries.back()}));
  }
  io::replace_file(path, text);
}

}  // namespace trireme::monitor
