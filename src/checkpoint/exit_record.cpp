// SPDX-License-Identifier: Apache-2.0
//
// exit.json of the run folder: written at the end of a start, read by the next start and by
// `trireme inspect`.
#include <filesystem>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/json.hpp"

namespace trireme::checkpoint {
namespace {

std::string record_path(const std::string& run_folder) { return run_folder + "/exit.json"; }

}  // namespace

void remove_exit_record(const std::string& run_folder) {
  std::error_code error;
  if (std::filesystem::remove(record_path(run_folder), error)) io::sync_folder(run_folder);
  ensure(!error, "{}: cannot be removed: {}", record_path(run_folder), error.message());
}

void write_exit_record(const std::string& run_folder, const ExitRecord& record) {
  nlohmann::ordered_json json;
  json["start"] = record.start;
  json["code"] = static_cast<int>(record.code);
  json["reason"] = record.reason;
  json["step"] = record.step;
  json["checkpoint"] = newest_checkpoint_name(run_folder + "/checkpoints");
  // The reason may quote other programs. Invalid UTF-8 is replaced: an exception would lose the
  // whole record.
  io::replace_file(
      record_path(run_folder),
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

std::optional<nlohmann::ordered_json> read_exit_record(const std::string& run_folder) {
  const std::string path = record_path(run_folder);
  if (!is_there(path)) return std::nullopt;
  auto record = io::read_json_file<nlohmann::ordered_json>(path, {});
  validate(record.is_object(), "{}: is not a JSON object", path);
  return record;
}

}  // namespace trireme::checkpoint
