// SPDX-License-Identifier: Apache-2.0
//
// Examines the files that others may have put into a run folder. A start calls check_names() before
// it writes anything, the others once it holds the lease. A record never stops it: it is set aside.
#include "trireme/monitor/run_folder.hpp"

#include <array>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/io/damaged_file.hpp"
#include "trireme/io/json.hpp"

namespace trireme::monitor {
namespace {

namespace names = io::run_names;

constexpr std::array records = {names::exit_record, names::environment, names::metrics,
                                names::prediction,  names::trace,       names::algorithms};

}  // namespace

bool RunFolder::has_run() const {
  return std::filesystem::is_directory(checkpoints()) || std::filesystem::exists(metrics());
}

void RunFolder::check_is_run() const {
  validate(!std::filesystem::is_regular_file(path_), "{}: is a file; name the folder of a run",
           path_);
  validate(std::filesystem::is_directory(path_), "{}: no such folder; name the folder of a run",
           path_);
  validate(has_run(), "{}: is no run folder: it has neither checkpoints/ nor metrics.jsonl", path_);
}

void RunFolder::check_names(bool uses_tensorboard) const {
  const auto kind_of = [](const std::string& path) {
    std::string kind = other_kind_of_file(path);
    validate(kind != "a link", "{}: is a link; remove it", path);
    return kind;
  };
  for (const char* const name : records) kind_of(*this / name);
  for (const std::string& path :
       {log(), *this / names::deck, *this / names::restart_attempts, *this / names::chain_log,
        checkpoints() + "/" + names::best_checkpoint}) {
    const std::string kind = kind_of(path);
    validate(kind.empty(), "{}: is {}, but must be a file; move it away", path, kind);
  }
  for (const auto& [name, is_used] :
       {std::pair(names::decks, true), std::pair(names::tensorboard, uses_tensorboard)}) {
    const std::string path = *this / name, kind = kind_of(path);
    validate(!is_used || kind == "a folder" || !is_there(path),
             "{}: is not a folder, but files of the run belong there; move it away", path);
  }
}

void RunFolder::rename_other_kinds(Log& log) const {
  for (const char* const name : records) {
    const std::string path = *this / name, kind = other_kind_of_file(path);
    if (!kind.empty())
      io::keep_as_damaged(path, fmt::format("{}: is {}, but must be a file", path, kind), log);
  }
}

nlohmann::ordered_json RunFolder::read_environment() const {
  const std::string path = environment();
  if (!is_there(path)) return nlohmann::ordered_json::array();
  // An entry has about 100 bytes and three values for each rank.
  auto entries = io::read_json_file<nlohmann::ordered_json>(
      path, {.bytes = max_environment_bytes, .depth = 8, .values = 2'000'000, .members = 128});
  validate(entries.is_array(), "{}: is not a JSON array", path);
  return entries;
}

std::vector<std::string> RunFolder::read_jobs() const {
  std::vector<std::string> jobs;
  for (const nlohmann::ordered_json& start : read_environment()) {
    const auto job = start.is_object() ? start.find("job") : start.end();
    jobs.push_back(job != start.end() && job->is_string() ? job->get<std::string>() : "");
  }
  return jobs;
}

std::optional<nlohmann::ordered_json> RunFolder::read_exit_record() const {
  const std::string path = exit_record();
  if (!is_there(path)) return std::nullopt;
  auto record = io::read_json_file<nlohmann::ordered_json>(path, {});
  validate(record.is_object(), "{}: is not a JSON object", path);
  return record;
}

std::optional<ExitTimes> RunFolder::times_of(const nlohmann::ordered_json& exit_record) {
  const auto time = [&](const char* key) {
    const auto found = exit_record.find(key);
    const bool is_text = found != exit_record.end() && found->is_string();
    return is_text ? parse_utc(found->get<std::string>()) : std::nullopt;
  };
  const std::optional<double> start = time("start"), end = time("end");
  if (!start || !end) return std::nullopt;
  return ExitTimes{.start = *start, .end = *end};
}

RunFolder::PreviousEnd RunFolder::previous_end(Log& log) const {
  try {
    const auto record = read_exit_record();
    if (!record) return {};
    const bool is_done =
        record->value("code", nlohmann::ordered_json()) == static_cast<int>(ExitCode::done);
    return {.is_done = is_done, .times = times_of(*record)};
  } catch (const InputError& error) {
    io::keep_as_damaged(exit_record(), error.what(), log);
    return {};
  }
}

}  // namespace trireme::monitor
