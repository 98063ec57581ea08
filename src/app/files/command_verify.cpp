// SPDX-License-Identifier: Apache-2.0
//
// `trireme verify`: checks every checksum of a file, or of all *.h5 files of a folder. Exit code 2
// if one is damaged, 1 if none is but the machine could not read one.
#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "app/commands.hpp"
#include "stored_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/verify.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/data/shards/verify.hpp"
#include "trireme/io/seal.hpp"
#include "trireme/monitor/run_folder.hpp"
#include "trireme/train/scores/prediction_rows.hpp"

namespace trireme::app {
namespace {

constexpr std::size_t max_line_bytes = 10'000;

/// The line that `verify` prints for one file, and its exit code.
struct Verdict {
  std::string text;
  ExitCode code = ExitCode::done;
};

Verdict damaged(const std::string& reason) { return {"damaged: " + reason, ExitCode::wrong_input}; }

/// Returns the message of an error without the path in front of it.
std::string message_without_path(const Error& error, const std::string& path) {
  const std::string message = error.what();
  return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
}

/// Returns whether nothing in a file has a name that one of ours would have.
bool is_of_other_program(const io::Hdf5Index& file) {
  constexpr std::array names{"images", "labels", "tokens", "model", "state"};
  return !file.has_attribute("/", "format") &&
         std::ranges::none_of(names, [&](const char* name) { return file.has(name); });
}

/// Checks the values of a file whose seal is intact or missing. Throws InputError.
std::string verify_values(io::Hdf5Index file) {
  return kind_of(file) == StoredKind::checkpoint
             ? checkpoint::verify_values(io::Hdf5Reader(std::move(file)))
             : data::verify_shard(std::move(file));
}

/// Checks one file. Errors become a verdict, so that the remaining files are checked too.
Verdict verify_file(const std::string& path) {
  std::string seal;
  try {
    // Check the seal first: HDF5 then never opens a damaged file.
    seal = io::check_seal(path);
  } catch (const Error& error) {
    return {"not checked: " + message_without_path(error, path), error.code()};
  }
  if (io::is_damage(seal)) return damaged(seal);
  try {
    io::Hdf5Index file = io::index_hdf5(path);
    if (!seal.empty()) {
      if (is_of_other_program(file))
        return {"no checksums: a file of another program, whose values are not checked here"};
      if (file.has_attribute("/", "format") &&
          file.attribute_string("/", "format") == train::predictions_format)
        return {"no checksums: predictions, whose values are not checked here"};
    }
    const std::string result = io::with_seal(seal, verify_values(std::move(file)));
    if (result.empty()) return {"whole"};
    if (result == "no seal")
      return {
          "no seal: the checksums are right; changes of attributes, class names and datasets "
          "without checksums are not found"};
    if (result == "no checksums")
      return {
          "no checksums: the file can be read; changes of its values, attributes and class names "
          "are not found"};
    return damaged(result);
  } catch (const InputError& error) {
    const std::string reason = message_without_path(error, path);
    if (!seal.empty()) return damaged(reason);
    return {"not usable, though every byte matches the seal: " + reason, ExitCode::wrong_input};
  } catch (const Failure& failure) {
    return {"not checked: " + message_without_path(failure, path), failure.code()};
  }
}

ExitCode verify_command(const std::string& path) {
  namespace fs = std::filesystem;
  validate(fs::exists(path), "{}: no such file or folder", path);
  std::vector<std::string> files{path};
  if (fs::is_directory(path)) {
    data::check_complete(path);
    const std::string checkpoints = monitor::RunFolder(path).checkpoints();
    files = h5_files(fs::is_directory(checkpoints) ? checkpoints : path);
    validate(!files.empty(),
             "{}: has no *.h5 files; name a dataset folder, a run folder or one file", path);
  }
  ExitCode code = ExitCode::done;
  for (const std::string& file : files) {
    const Verdict verdict = verify_file(file);
    const bool good = verdict.code == ExitCode::done;
    fmt::print(good ? stdout : stderr, "{}\n",
               printable(fmt::format("{}: {}", file, verdict.text), max_line_bytes));
    // A file that is known to be wrong outweighs one that could not be checked.
    if (!good && code != ExitCode::wrong_input) code = verdict.code;
  }
  return code;
}

}  // namespace

void add_verify(CommandLine& line) {
  Command command = line.add("verify",
                             "Check every checksum of a checkpoint, a shard, a dataset or a run "
                             "folder; exit 2 names the place of the damage");
  const auto path = std::make_shared<std::string>();
  command.option("PATH", *path, "A file, a folder of shards, or a run folder (its checkpoints)")
      .required();
  command.footer("Example:\n  trireme verify runs/fashion/checkpoints/best.h5");
  command.set_single_rank_action([path] { return verify_command(*path); });
}

}  // namespace trireme::app
