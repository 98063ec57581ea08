// SPDX-License-Identifier: Apache-2.0
//
// Finds the HDF5 and netCDF-4 files of other programs that a place names: a folder, a file or a
// pattern. A folder that cannot be listed or entered is an error, so that no samples are missing.
#include "trireme/data/arrays/array_files.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string_view>

#include <fnmatch.h>
#include <glob.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/data/arrays/array_form.hpp"
#include "trireme/io/file_form.hpp"

namespace trireme::data {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> endings{".h5", ".hdf5", ".he5", ".nc", ".nc4"};

std::vector<std::string> files_of_folder(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error, ignored;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    if (is_array_file_name(entry->path()) && !entry->is_directory(ignored))
      paths.push_back(entry->path().string());
  validate_path(error.value(), "{}: cannot be listed: {}", folder, error.message());
  validate(!paths.empty(), "{}: contains no *.h5, *.hdf5, *.he5, *.nc or *.nc4 file{}", folder,
           io::form_hint(io::recognize_form(folder)));
  return paths;
}

/// Returns the paths that a pattern matches.
std::vector<std::string> matches_of(const std::string& pattern) {
  struct Matches {
    glob_t found{};
    ~Matches() { globfree(&found); }
  } matches;
  const int result = glob(pattern.c_str(), GLOB_NOSORT | GLOB_ERR, nullptr, &matches.found);
  validate(result == 0 || result == GLOB_NOMATCH, "{}: a folder of it cannot be listed", pattern);
  return {matches.found.gl_pathv, matches.found.gl_pathv + matches.found.gl_pathc};
}

std::vector<std::string> files_of_pattern(const std::string& pattern) {
  // A folder that this user may not enter would be passed over, and its samples be missing.
  for (std::size_t slash = pattern.find('/', 1); slash != std::string::npos;
       slash = pattern.find('/', slash + 1))
    for (const std::string& folder : matches_of(pattern.substr(0, slash))) {
      std::error_code ignored;
      validate(!fs::is_directory(folder, ignored) || access(folder.c_str(), X_OK) == 0,
               "{}: matches the folder {}, which cannot be entered: {}", pattern, folder,
               std::strerror(errno));
    }
  std::vector<std::string> paths = matches_of(pattern);
  std::erase_if(paths, [](const std::string& path) {
    std::error_code ignored;
    return fs::is_directory(path, ignored);
  });
  validate(!paths.empty(), "{}: no file matches this pattern", pattern);
  return paths;
}

/// Returns the folder of a file, "." if its path names none.
fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

}  // namespace

bool is_array_file_name(const fs::path& path) {
  const std::string ending = path.extension().string();
  return std::find(endings.begin(), endings.end(), ending) != endings.end() &&
         !path.filename().string().starts_with('.');
}

std::vector<std::string> array_paths(const std::string& place) {
  std::error_code ignored;
  std::vector<std::string> paths;
  if (fs::is_directory(place, ignored)) {
    paths = files_of_folder(place);
  } else if (fs::exists(place, ignored)) {
    paths.push_back(place);
  } else {
    validate(place.find_first_of("*?[") != std::string::npos,
             "{}: there is no such file or folder; name a folder, a file, or a pattern such as "
             "\"data/*.nc\"",
             place);
    paths = files_of_pattern(place);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

bool takes_array_file(const std::string& place, const fs::path& path) {
  std::error_code ignored;
  const auto is_in = [&](const fs::path& folder) {
    return fs::equivalent(folder_of(path), folder, ignored);
  };
  if (fs::is_directory(place, ignored)) return is_array_file_name(path) && is_in(place);
  if (fs::exists(place, ignored)) return fs::equivalent(place, path, ignored);
  const fs::path pattern(place);
  const std::vector<std::string> folders = matches_of(folder_of(pattern).string());
  return fnmatch(pattern.filename().c_str(), path.filename().c_str(), FNM_PERIOD) == 0 &&
         std::any_of(folders.begin(), folders.end(), is_in);
}

}  // namespace trireme::data
