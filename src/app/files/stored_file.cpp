// SPDX-License-Identifier: Apache-2.0
//
// Kinds of files and folders on the command line, and the check of output paths.
#include "stored_file.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include <sys/stat.h>

#include "app/output_file.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/io/run_names.hpp"
#include "trireme/train/scores/prediction_rows.hpp"

namespace trireme::app {

bool is_ours(const io::Hdf5Index& file) {
  if (!file.has_attribute("/", "format")) return false;
  // Another program's file may have an attribute of this name, and one of ours a damaged one. Then
  // the other names decide.
  if (file.has_attribute("/", "version") && (file.has("model") || file.has("labels"))) return true;
  try {
    return file.attribute_string("/", "format").starts_with("trireme-");
  } catch (const InputError&) {
    return false;
  }
}

StoredKind kind_of(const io::Hdf5Index& file) {
  validate(file.has_attribute("/", "format"),
           "{}: has no attribute format; it must be \"trireme-shard\" or \"trireme-checkpoint\"",
           file.path());
  const std::string format = file.attribute_string("/", "format");
  if (format == "trireme-shard") return StoredKind::shard;
  if (format == train::predictions_format) return StoredKind::predictions;
  validate(format == "trireme-checkpoint",
           "{}: format is \"{}\", neither \"trireme-shard\" nor \"trireme-checkpoint\"",
           file.path(), printable(format));
  return StoredKind::checkpoint;
}

std::vector<std::string> h5_files(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (data::is_shard_name(entry->path())) files.push_back(entry->path().string());
  }
  validate_path(error.value(), "{}: cannot be listed: {}", folder, error.message());
  std::sort(files.begin(), files.end());
  return files;
}

std::string input_of_same_file(const std::string& output, const std::vector<std::string>& inputs) {
  struct stat there{};
  if (::stat(output.c_str(), &there) != 0) return "";
  const auto same = std::find_if(inputs.begin(), inputs.end(), [&](const std::string& input) {
    struct stat given{};
    return ::stat(input.c_str(), &given) == 0 && given.st_dev == there.st_dev &&
           given.st_ino == there.st_ino;
  });
  return same == inputs.end() ? "" : *same;
}

std::string check_output(const std::string& output, const std::vector<std::string>& inputs,
                         bool overwrite) {
  const std::string target = output_target("--out", output);
  struct stat there{};
  const int error = ::stat(target.c_str(), &there) == 0 ? 0 : errno;
  validate_path(error == ENOENT ? 0 : error, "--out {}: {}", output, std::strerror(error));
  if (error == 0) {
    const std::string input = input_of_same_file(target, inputs);
    validate(input.empty(), "--out {}: {} is the input file {}; use another name", output, target,
             input);
    validate(S_ISREG(there.st_mode), "--out {}: is {}, but must be a file", output,
             S_ISDIR(there.st_mode) ? "a folder" : "not a regular file");
    validate(overwrite, "--out {}: exists already; use another name, or --overwrite to replace it",
             output);
  }
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  validate(folder.empty() || std::filesystem::is_directory(folder),
           "--out {}: the folder {} does not exist", output, folder.string());
  return validate_creatable("--out", output);
}

bool has_checkpoint_names(const std::string& folder) {
  for (const std::string& path : h5_files(folder)) {
    const std::string name = std::filesystem::path(path).filename().string();
    if (name.starts_with("step_") || name == io::run_names::best_checkpoint) return true;
  }
  return false;
}

bool holds_checkpoint(const std::string& folder) {
  for (const std::string& path : h5_files(folder)) {
    try {
      const StoredKind kind = kind_of(io::index_hdf5(path));
      if (kind != StoredKind::predictions) return kind == StoredKind::checkpoint;
    } catch (const InputError&) {
    }
  }
  return false;
}

}  // namespace trireme::app
