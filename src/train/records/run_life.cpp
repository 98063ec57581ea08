// SPDX-License-Identifier: Apache-2.0
#include "trireme/train/records/run_life.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/error.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/folder.hpp"

namespace trireme::train {
namespace {

namespace fs = std::filesystem;

std::string name_of_folder(const std::string& path) {
  constexpr std::size_t max_bytes = 80;
  const fs::path whole = fs::absolute(path).lexically_normal();
  const fs::path name = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return printable(name.string(), max_bytes);
}

void read_exit_record(const monitor::RunFolder& folder, RunLife& life) {
  const auto record = folder.read_exit_record();
  if (!record) return;
  const auto code = record->find("code"), reason = record->find("reason");
  if (code != record->end() && code->is_number_integer())
    life.exit_code = code->get<std::int64_t>();
  else
    life.trouble = printable(folder.exit_record() + ": has no code");
  if (reason != record->end() && reason->is_string())
    life.exit_reason = printable(reason->get<std::string>());
  life.times = monitor::RunFolder::times_of(*record);
}

}  // namespace

bool RunLife::is_running() const {
  return heartbeat_age && *heartbeat_age < checkpoint::LeaseTimes().stale_seconds && !exit_code;
}

RunLife read_life(const monitor::RunFolder& folder) {
  RunLife life{.name = name_of_folder(folder.path())};
  std::error_code error;
  const auto renewed = fs::last_write_time(folder / io::run_names::lease, error);
  if (!error)
    // Clocks of other hosts may be ahead.
    life.heartbeat_age = std::max(
        0.0, std::chrono::duration<double>(fs::file_time_type::clock::now() - renewed).count());
  try {
    read_exit_record(folder, life);
  } catch (const InputError& unreadable) {
    life.trouble = printable(unreadable.what());
  }
  return life;
}

std::string describe(const RunLife& life) {
  if (life.is_running())
    return fmt::format("running, heartbeat {} ago", format_short_seconds(*life.heartbeat_age));
  if (life.exit_code) return fmt::format("ended with {}: {}", *life.exit_code, life.exit_reason);
  if (!life.trouble.empty()) return "how it ended is unknown: exit.json cannot be read";
  if (life.heartbeat_age)
    return fmt::format("killed, or its host was lost: the last heartbeat was {} ago",
                       format_seconds(*life.heartbeat_age));
  return "no process holds the run, and it has left no exit.json: it was killed, or has not begun";
}

}  // namespace trireme::train
