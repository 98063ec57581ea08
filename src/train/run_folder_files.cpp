// SPDX-License-Identifier: Apache-2.0
//
// Examines the files that others may have put into a run folder, before a start uses them.
//
// acquire_run_folder() calls validate_run_folder_files() before it writes anything, and the other
// two once it holds the lease. What is only a record never stops a run: it is set aside.
#include "run_folder_files.hpp"

#include <array>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "trireme/base/check.hpp"
#include "trireme/base/plain_file.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/io/damaged_file.hpp"

namespace trireme::train {
namespace {

constexpr std::array records = {"exit.json",       "environment.json", "metrics.jsonl",
                                "prediction.json", "trace.json",       "algorithms.txt"};
constexpr std::array files = {"log.txt", "deck.toml", "restart.json", "chain.log",
                              "checkpoints/best.h5"};

}  // namespace

void validate_run_folder_files(const std::string& run_folder, bool tensorboard) {
  const auto kind_of = [&](const char* name) {
    const std::string path = run_folder + "/" + name;
    std::string kind = other_kind_of_file(path);
    validate(kind != "a link", "{}: is a link; remove it", path);
    return kind;
  };
  for (const char* const name : records) kind_of(name);
  for (const char* const name : files) {
    const std::string kind = kind_of(name);
    validate(kind.empty(), "{}/{}: is {}, but must be a file; move it away", run_folder, name,
             kind);
  }
  for (const char* const name : {"decks", "tensorboard"}) {
    const std::string kind = kind_of(name), path = run_folder + "/" + name;
    const bool is_used = tensorboard || std::string_view(name) == "decks";
    validate(!is_used || kind == "a folder" || !is_there(path),
             "{}: is not a folder, but files of the run belong there; move it away", path);
  }
}

void rename_other_kinds(const std::string& run_folder, Log& log) {
  for (const char* const name : records) {
    const std::string path = run_folder + "/" + name, kind = other_kind_of_file(path);
    if (!kind.empty())
      io::keep_as_damaged(path, fmt::format("{}: is {}, but must be a file", path, kind), log);
  }
}

bool ended_as_done(const std::string& run_folder, Log& log) {
  try {
    const auto record = checkpoint::read_exit_record(run_folder);
    return record &&
           record->value("code", nlohmann::ordered_json()) == static_cast<int>(ExitCode::done);
  } catch (const InputError& error) {
    io::keep_as_damaged(run_folder + "/exit.json", error.what(), log);
    return false;
  }
}

}  // namespace trireme::train
