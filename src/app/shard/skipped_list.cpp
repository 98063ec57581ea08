// SPDX-License-Identifier: Apache-2.0
#include "skipped_list.hpp"

#include <filesystem>
#include <fstream>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

std::string header_of(std::string_view column) { return fmt::format("{},reason\n", column); }

/// Returns whether a file is such a list.
bool is_skipped_list(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  std::string first;
  std::getline(std::ifstream(path), first);
  first += '\n';
  return first == header_of("image") || first == header_of("line");
}

}  // namespace

std::string skipped_line(std::string_view place, std::string_view reason) {
  const auto quote = [](std::string_view text) { return csv_quoted(printable(text, 4096)); };
  return fmt::format("{},{}\n", quote(place), quote(reason));
}

void write_skipped_list(const ShardFolder& out, std::string_view column, const std::string& lines) {
  const fs::path target = fs::path(out.folder()) / skipped_file_name;
  std::error_code error;
  validate(!fs::exists(target, error) || is_skipped_list(target),
           "{}: exists, and is no list of what was skipped, so it is not replaced; remove it",
           target.string());
  io::replace_file((out.staging() / skipped_file_name).string(), header_of(column) + lines);
}

void remove_old_skipped_list(const std::string& folder) {
  const fs::path path = fs::path(folder) / skipped_file_name;
  std::error_code error;
  if (is_skipped_list(path)) fs::remove(path, error);
}

}  // namespace trireme::app
