// SPDX-License-Identifier: Apache-2.0
//
// The folder of checkpoints: which file a restart takes, and which files stay.
//
// At a start, restore() of src/train calls remove_leftovers(), find_newest() and
// skip_failed_checkpoint(), then count_attempt(); clear_attempts() follows after the first step.
// After each checkpoint the Saver calls rotate(). Rank 0 does all file system work; the results are
// broadcast as CBOR bytes.
#include "trireme/checkpoint/folder.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <utility>

#include <unistd.h>

#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "serialize.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/damaged_file.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"
#include "trireme/io/json.hpp"
#include "trireme/io/run_names.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {
namespace {

namespace fs = std::filesystem;
namespace names = io::run_names;

constexpr std::string_view prefix = "step_", suffix = ".h5", temporary_suffix = ".h5.tmp";

/// A file or folder with the name of a step's checkpoint.
struct StepFile {
  std::int64_t step = 0;
  fs::path path;
};

/// Returns the step in a file name "step_<digits>.h5"; none for other names.
std::optional<std::int64_t> step_of(const std::string& name) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) ||
      name.size() <= prefix.size() + suffix.size())
    return std::nullopt;
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size() - suffix.size();
  std::int64_t step = 0;
  const auto [stopped, error] = std::from_chars(begin, end, step);
  if (error != std::errc() || stopped != end || step < 0) return std::nullopt;
  return step;
}

/// Returns whether a checkpoint of a run is written under this name before it is published.
bool is_temporary_name(const std::string& name) {
  const std::string published = name.substr(0, name.rfind('.'));
  return name.ends_with(temporary_suffix) &&
         (published == names::best_checkpoint || step_of(published));
}

/// Returns the step checkpoints of a folder, newest first; empty if the folder is missing. Throws
/// InputError if it may not be read, Failure if the disk fails.
std::vector<StepFile> step_files(const std::string& folder) {
  std::vector<StepFile> files;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory)
    return files;
  for (const fs::directory_iterator end; !error && entry != end; entry.increment(error)) {
    const std::optional<std::int64_t> step = step_of(entry->path().filename().string());
    if (step) files.push_back({*step, entry->path()});
  }
  validate(!is_path_error(error.value()), "{}: cannot be listed: {}; give this user the permission",
           folder, error.message());
  ensure(!error, "{}: cannot be listed: {}", folder, error.message());
  std::sort(files.begin(), files.end(), [](const StepFile& a, const StepFile& b) {
    return a.step != b.step ? a.step > b.step : a.path > b.path;
  });
  return files;
}

/// Returns the result of check_seal(). A file that the disk cannot read is damaged, too.
std::string seal_of(const std::string& path) {
  try {
    return io::check_seal(path);
  } catch (const Error& error) {
    return error.what();
  }
}

/// Returns the contents of a checkpoint. Throws NewerFormat, InputError if the file is refused, and
/// Failure of the machine.
Contents read_intact_contents(const std::string& path) {
  auto index = std::make_shared<const io::Hdf5Index>(io::index_hdf5(path));
  Contents contents = read_contents(*index);
  contents.index = std::move(index);
  return contents;
}

/// Checks a checkpoint of step `step` and reads its contents. Returns "" if a run can resume from
/// it, else the defect.
///
/// Only a fault of the file is a defect. Throws NewerFormat; InputError if the file may not be
/// read, or if its content is refused although its seal is valid; and Failure of the machine. In
/// these cases the file may be intact, and a run that passed it over would lose steps.
std::string find_defect(const std::string& path, std::int64_t step, Contents& contents) {
  // A link to nowhere is a defect; a file without permission is not.
  const bool permitted = ::access(path.c_str(), R_OK) == 0 || errno != EACCES;
  validate(permitted,
           "{}: may not be read; a run resumes from its newest checkpoint: give this user "
           "the permission, or move the file away",
           path);
  const std::string seal = seal_of(path);
  if (io::is_damage(seal)) return seal;
  try {
    contents = read_intact_contents(path);
    // A run that resumed from this file would write checkpoints with lower steps in their names.
    // The next restart would ignore those.
    if (contents.info.step != step)
      return fmt::format("its name says step {}, its attribute step is {}", step,
                         contents.info.step);
    return contents.tensors.empty() ? "it holds no tensors" : "";
  } catch (const NewerFormat&) {
    throw;
  } catch (const InputError& error) {
    // No disk damages a file and keeps its seal right: another program or another user made it.
    validate(!seal.empty(), "{}; its seal is valid, so no disk damaged it: move it away",
             error.what());
    return error.what();
  }
}

/// Returns the newest usable checkpoint with a step below `before`, and those that were skipped:
/// defective ones, and those that `refuse` gives a reason against, unless it refuses all.
CheckpointChoice scan_for_newest(const std::string& folder,
                                 std::int64_t before = std::numeric_limits<std::int64_t>::max(),
                                 const std::function<std::string(const Info&)>& refuse = nullptr) {
  CheckpointChoice choice;
  for (const StepFile& file : step_files(folder)) {
    if (file.step >= before) continue;
    Contents contents;
    const std::string why = find_defect(file.path.string(), file.step, contents);
    const std::string refusal = why.empty() && refuse ? refuse(contents.info) : "";
    if (!refusal.empty()) {
      choice.rejected.push_back({file.path.string(), refusal, false});
      continue;
    }
    if (why.empty()) {
      choice.contents = std::move(contents);
      choice.path = file.path.string();
      choice.step = file.step;
      return choice;
    }
    choice.rejected.push_back({file.path.string(), why});
  }
  return refuse ? scan_for_newest(folder, before) : choice;
}

/// Removes *.h5.tmp files. Ignores errors: such a file is never taken for a checkpoint, and the
/// next call tries again.
void remove_temporary_files(const std::string& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored)) return;
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.is_regular_file(ignored) && entry.path().string().ends_with(temporary_suffix))
      files.push_back(entry.path());
  }
  for (const fs::path& file : files) fs::remove(file, ignored);
}

/// Serializes a choice, except its contents.
std::string to_bytes(const CheckpointChoice& choice) {
  nlohmann::json rejected = nlohmann::json::array();
  for (const RejectedFile& file : choice.rejected)
    rejected.push_back({file.path, file.reason, file.is_damaged});
  const std::vector<std::uint8_t> bytes =
      nlohmann::json::to_cbor(nlohmann::json::array({choice.path, choice.step, rejected}));
  return {bytes.begin(), bytes.end()};
}

/// The inverse of to_bytes(); the contents stay empty.
CheckpointChoice choice_from_bytes(const std::string& bytes) {
  const nlohmann::json json = nlohmann::json::from_cbor(bytes);
  CheckpointChoice choice{json[0], json[1], {}, {}};
  for (const nlohmann::json& file : json[2]) choice.rejected.push_back({file[0], file[1], file[2]});
  return choice;
}

/// Runs `body` on rank 0; all ranks wait and throw its error. Collective.
template <class Body>
void run_on_rank_zero(const comm::Communicator& world, Body&& body) {
  comm::together(world, [&] {
    if (world.rank() == 0) body();
  });
}

/// Runs `body` on rank 0 and returns its result on every rank. Collective.
template <class Body>
CheckpointChoice broadcast_choice(const comm::Communicator& world, Body&& body) {
  CheckpointChoice found;
  run_on_rank_zero(world, [&] { found = body(); });
  CheckpointChoice choice = choice_from_bytes(world.broadcast(to_bytes(found), 0));
  choice.contents = broadcast_contents(world, std::move(found.contents));
  return choice;
}

std::string path_in(const std::string& folder, const char* name) { return folder + "/" + name; }

/// Returns the attempts in a file; none if count_attempt() does not write such a text. Throws
/// InputError if the file is too large or too deep, or not a regular file.
RestartAttempts attempts_of(const std::string& path) {
  constexpr std::uint64_t max_starts = 1'000'000;
  try {
    const auto json = io::read_json_file<nlohmann::json>(path, {});
    if (json.is_object() && json.contains("checkpoint") && json["checkpoint"].is_string() &&
        json.contains("starts") && json["starts"].is_number_unsigned())
      return {json["checkpoint"],
              static_cast<int>(std::min(json["starts"].get<std::uint64_t>(), max_starts))};
  } catch (const io::NotJson&) {
  } catch (const InputError& error) {
    throw InputError(fmt::format("{}; remove it", error.what()));
  }
  return {};
}

}  // namespace

std::string step_file_name(std::int64_t step) { return fmt::format("step_{:09}.h5", step); }

std::string newest_checkpoint_name(const std::string& folder) {
  try {
    std::error_code ignored;
    for (const StepFile& file : step_files(folder))
      if (fs::is_regular_file(file.path, ignored)) return file.path.filename().string();
  } catch (const std::exception&) {
    // The exit record is written without it.
  }
  return "";
}

CheckpointChoice find_newest(const comm::Communicator& world, const std::string& folder,
                             const std::function<std::string(const Info&)>& refuse) {
  return broadcast_choice(world, [&] {
    return scan_for_newest(folder, std::numeric_limits<std::int64_t>::max(), refuse);
  });
}

void remove_exit_record(const std::string& run_folder) {
  std::error_code error;
  if (std::filesystem::remove(path_in(run_folder, names::exit_record), error))
    io::sync_folder(run_folder);
  ensure(!error, "{}: cannot be removed: {}", path_in(run_folder, names::exit_record),
         error.message());
}

void write_exit_record(const std::string& run_folder, const ExitRecord& record) {
  nlohmann::ordered_json json;
  json["start"] = record.start;
  json["end"] = utc_timestamp();
  json["code"] = static_cast<int>(record.code);
  json["reason"] = record.reason;
  json["step"] = record.step;
  json["checkpoint"] = newest_checkpoint_name(path_in(run_folder, names::checkpoints));
  // The reason may quote other programs: invalid UTF-8 is replaced, so that no record is lost.
  io::replace_file(
      path_in(run_folder, names::exit_record),
      json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

RestartAttempts read_attempts(const comm::Communicator& world, const std::string& run_folder) {
  RestartAttempts attempts;
  run_on_rank_zero(world, [&] {
    const std::string path = path_in(run_folder, names::restart_attempts);
    if (is_there(path)) attempts = attempts_of(path);
  });
  attempts.checkpoint = world.broadcast(attempts.checkpoint, 0);
  world.broadcast(std::as_writable_bytes(std::span(&attempts.starts, 1)), 0);
  return attempts;
}

void count_attempt(const comm::Communicator& world, const std::string& run_folder,
                   const std::string& checkpoint) {
  const RestartAttempts before = read_attempts(world, run_folder);
  run_on_rank_zero(world, [&] {
    const int starts = before.checkpoint == checkpoint ? before.starts + 1 : 1;
    io::replace_file(path_in(run_folder, names::restart_attempts),
                     nlohmann::json{{"checkpoint", checkpoint}, {"starts", starts}}.dump() + "\n");
  });
}

void clear_attempts(const comm::Communicator& world, const std::string& run_folder) {
  // At worst the next start counts one attempt too many.
  std::error_code ignored;
  if (world.rank() == 0) fs::remove(path_in(run_folder, names::restart_attempts), ignored);
}

CheckpointChoice skip_failed_checkpoint(const comm::Communicator& world,
                                        const std::string& run_folder,
                                        const CheckpointChoice& newest, Log& log) {
  const std::string name = fs::path(newest.path).filename().string();
  const RestartAttempts attempts = read_attempts(world, run_folder);
  if (name.empty() || attempts.checkpoint != name || attempts.starts < max_restart_attempts)
    return newest;
  CheckpointChoice older = broadcast_choice(
      world, [&] { return scan_for_newest(path_in(run_folder, names::checkpoints), newest.step); });
  if (older.path.empty()) {
    log.warn(
        "{} consecutive starts from {} ended before their first step; no older checkpoint exists, "
        "so it is tried "
        "again",
        attempts.starts, newest.path);
    return newest;
  }
  run_on_rank_zero(world, [&] {
    const fs::path aside = io::rename_aside(newest.path, ".failed");
    log.warn(
        "{} is skipped and kept as {}: {} consecutive starts from it ended before their first step",
        newest.path, aside.filename().string(), attempts.starts);
  });
  older.rejected.insert(older.rejected.begin(), newest.rejected.begin(), newest.rejected.end());
  return older;
}

bool has_checkpoints(const std::string& folder) {
  std::error_code ignored;
  return !step_files(folder).empty() ||
         fs::exists(path_in(folder, names::best_checkpoint), ignored);
}

void remove_leftovers(const comm::Communicator& world, const std::string& folder, Log& log) {
  run_on_rank_zero(world, [&] {
    remove_temporary_files(folder);
    std::error_code ignored;
    std::vector<std::string> left;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored))
      if (is_temporary_name(entry.path().filename().string()) && !entry.is_regular_file(ignored))
        left.push_back(entry.path().string());
    for (const std::string& path : left) {
      try {
        io::keep_as_damaged(
            path, path + ": is not a file, but a checkpoint is written under this name", log);
      } catch (const Error& error) {
        log.warn("{}: is in the way of a checkpoint: {}", path, error.what());
      }
    }
  });
}

void rename_rejected(const comm::Communicator& world, const std::vector<RejectedFile>& rejected,
                     Log& log) {
  run_on_rank_zero(world, [&] {
    for (const RejectedFile& file : rejected) {
      const fs::path aside =
          io::rename_aside(file.path, file.is_damaged ? io::damaged_suffix : ".failed");
      log.warn("{} {}was renamed to {}: {}", file.path, file.is_damaged ? "is damaged and " : "",
               aside.filename().string(), file.reason);
    }
  });
}

void archive_checkpoints(const comm::Communicator& world, const std::string& folder, Log& log) {
  run_on_rank_zero(world, [&] {
    if (!fs::is_directory(folder)) return;
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      // A folder with the name of a step would be in the way of that checkpoint.
      if (step_of(name) ||
          (entry.is_regular_file() &&
           (name.ends_with(suffix) || name.find(".h5.damaged") != std::string::npos ||
            name.find(".h5.failed") != std::string::npos)))
        files.push_back(entry.path());
    }
    if (files.empty()) return;
    std::string timestamp = utc_timestamp();
    std::erase_if(timestamp, [](char c) { return c == ':' || c == '-'; });
    const fs::path aside = io::free_name((fs::path(folder) / ("before-" + timestamp)).string());
    fs::create_directory(aside);
    for (const fs::path& file : files) fs::rename(file, aside / file.filename());
    io::sync_folder(aside.string());
    io::sync_folder(folder);
    log.info("{} checkpoint files of the earlier run are kept in {}", files.size(), aside.string());
  });
}

void rotate(const std::string& folder, const RetentionPolicy& keep, const std::string& protect) {
  const std::string kept_name = fs::path(protect).filename().string();
  std::vector<StepFile> files = step_files(folder);
  std::erase_if(files, [](const StepFile& file) {
    std::error_code ignored;
    return !fs::is_regular_file(file.path, ignored);
  });
  const auto intervals = [&](std::size_t i) { return keep.intervals_up_to(files[i].step); };
  // Files are sorted newest first, so file i + 1 is the next older one.
  const auto first_after_interval = [&](std::size_t i) {
    return keep.intervals_up_to && intervals(i) >= 1 &&
           (i + 1 == files.size() || intervals(i + 1) < intervals(i));
  };
  std::vector<fs::path> to_remove;
  for (std::size_t i = static_cast<std::size_t>(std::max(keep.newest, 0)); i < files.size(); ++i) {
    if (files[i].path.filename() != kept_name && !first_after_interval(i))
      to_remove.push_back(files[i].path);
  }
  for (const fs::path& path : to_remove) fs::remove(path);
  enter_phase("checkpoint-rotate");
  remove_temporary_files(folder);
}

}  // namespace trireme::checkpoint
