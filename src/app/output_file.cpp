// SPDX-License-Identifier: Apache-2.0
//
// The files that commands write beside run folders. An argument in the wrong place must not cost a
// deck or a shard, so only files that do not exist, and files of the same form, are replaced.
#include "output_file.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/report/report.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

struct Signature {
  std::string_view bytes;  // the first bytes of such a file
  const char *name, *example;
};

Signature signature_of(OutputForm form) {
  switch (form) {
    case OutputForm::png: return {"\x89PNG\r\n\x1a\n", "PNG", "sheet.png"};
    case OutputForm::svg: return {"<svg ", "SVG", "plot.svg"};
    case OutputForm::json: return {"{", "JSON", "plan.json"};
    case OutputForm::job: return {"#!/usr/bin/env bash\n#SBATCH ", "job", "job.sh"};
    case OutputForm::hdf5: return {"\x89HDF\r\n\x1a\n", "HDF5", "results.h5"};
    case OutputForm::confusion_csv:
      return {report::confusion_csv_start, "confusion matrix", "c.csv"};
    case OutputForm::report: return {report::page_start, "report", "report.html"};
    case OutputForm::confusion_svg: return {confusion_svg_start, "confusion matrix", "c.svg"};
  }
  return {};
}

/// Returns the absolute path of the file, to which links lead.
fs::path canonical(const std::string& path) {
  std::error_code ignored;
  const fs::path absolute = fs::absolute(path, ignored);
  const fs::path found = fs::weakly_canonical(absolute, ignored);
  return found.empty() ? absolute : found;
}

/// A device or a pipe.
bool is_stream(const fs::file_status& status) {
  return fs::is_character_file(status) || fs::is_fifo(status);
}

/// Returns whether viewers take files of this ending for another form than that of `example`.
bool is_ending_of_another(const std::string& ending, const std::string& example) {
  constexpr std::array known{".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp", ".pdf", ".html"};
  return ending != fs::path(example).extension() &&
         std::find(known.begin(), known.end(), ending) != known.end();
}

}  // namespace

void validate_output(const char* option, const std::string& path, OutputForm form) {
  const auto [bytes, name, example] = signature_of(form);
  if (path == "-") {
    validate(form == OutputForm::json, "{0} -: is no name of a file; name one, as in {0} {1}",
             option, example);
    return;
  }
  reject_address(fmt::format("{} {}", option, path), path);
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  validate(!fs::is_directory(status), "{} {}: is a folder; name a file in it", option, path);
  if (fs::exists(status)) {
    validate((form == OutputForm::json && is_stream(status)) ||
                 (fs::is_regular_file(status) &&
                  (fs::file_size(path, ignored) == 0 || io::begins_with(path, bytes))),
             "{} {}: exists and is no {} file, so it is not replaced; name another file", option,
             path, name);
    if (!is_stream(status)) validate_creatable(option, path);
    return;
  }
  const fs::path folder = fs::absolute(path, ignored).parent_path();
  validate(fs::is_directory(folder, ignored),
           "{} {}: there is no folder {}; make it, or name a file in another one", option, path,
           folder.string());
  validate(fs::path(path).has_filename(), "{} {}: is a folder; name a file in it", option, path);
  const std::string ending = fs::path(path).extension().string();
  validate(!is_ending_of_another(ending, example),
           "{0} {1}: is written as {2}, so its name must not end in {3}; name it as in {0} {4}",
           option, path, name, ending, example);
  validate_creatable(option, path);
}

std::string output_target(const std::string& option, const std::string& path) {
  reject_address(fmt::format("{} {}", option, path), path);
  std::error_code ignored;
  if (!fs::is_symlink(fs::symlink_status(path, ignored))) return path;
  validate(fs::exists(path, ignored), "{} {}: is a link to nothing; name another file", option,
           path);
  return canonical(path).string();
}

std::string validate_creatable(const std::string& option, const std::string& path) {
  const std::string target = output_target(option, path);
  const io::StagedFile staged(target, io::unique_suffix());
  try {
    const io::File file(staged.temporary(), io::File::Mode::create);
    return target;
  } catch (const InputError& error) {
    std::string reason = error.what();
    if (reason.starts_with(staged.temporary()))
      reason.replace(0, staged.temporary().size(), target);
    throw InputError(
        fmt::format("{} {}: no file can be made in its folder ({}); name a file in another folder",
                    option, path, reason));
  }
}

void validate_distinct_outputs(
    std::initializer_list<std::pair<const char*, std::string>> option_and_path) {
  std::map<fs::path, const char*> options;
  for (const auto& [option, path] : option_and_path) {
    if (path.empty() || path == "-") continue;
    std::error_code ignored;
    const fs::file_status status = fs::status(path, ignored);
    if (is_stream(status)) continue;
    const auto [other, is_new] = options.try_emplace(canonical(path), option);
    validate(is_new, "{} and {} name the same file, {}; name two files", other->second, option,
             path);
  }
}

void write_output(const std::string& path, std::string_view text) {
  if (path == "-") {
    fmt::print("{}", text);
    return;
  }
  std::error_code ignored;
  if (is_stream(fs::status(path, ignored))) {
    std::ofstream file(path, std::ios::binary);
    file << text << std::flush;
    validate(file.good(), "{}: cannot be written", path);
    return;
  }
  io::replace_file(canonical(path).string(), text);
}

}  // namespace trireme::app
