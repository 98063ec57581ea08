#include "trireme/monitor/environment_json.hpp"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "trireme/io/file.hpp"

namespace trireme::monitor {
namespace {

nlohmann::ordered_json to_json(const EnvironmentEntry& entry) {
  nlohmann::ordered_json json;
  const auto put = [&json](const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  };
  put("time", entry.time);
  put("command", entry.command);
  put("deck", entry.deck);
  put("restart", entry.restart);
  put("checkpoint", entry.checkpoint);
  put("version", entry.version);
  put("source_revision", entry.source_revision);
  put("compiler", entry.compiler);
  put("build_type", entry.build_type);
  put("mpi", entry.mpi);
  put("hdf5", entry.hdf5);
  put("kokkos", entry.kokkos);
  put("onednn", entry.onednn);
  put("cuda", entry.cuda);
  put("driver", entry.driver);
  put("cudnn", entry.cudnn);
  put("nccl", entry.nccl);
  put("job", entry.job);
  put("device", entry.device);
  put("layout", entry.layout);
  put("seed", entry.seed);
  json["ranks"] = entry.hosts.size();
  json["hosts"] = entry.hosts;
  json["devices"] = entry.devices;
  return json;
}

nlohmann::ordered_json earlier_entries(const std::string& path) {
  if (!std::filesystem::exists(path)) return nlohmann::ordered_json::array();
  nlohmann::ordered_json entries =
      nlohmann::ordered_json::parse(io::read_text_file(path), nullptr, false);
  if (entries.is_array()) return entries;
  io::rename_durably(path, path + ".damaged");
  return nlohmann::ordered_json::array();
}

}  // namespace

void append_environment(const std::string& path, const EnvironmentEntry& entry) {
  nlohmann::ordered_json entries = earlier_entries(path);
  entries.push_back(to_json(entry));
  io::replace_file(
      path, entries.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace trireme::monitor
