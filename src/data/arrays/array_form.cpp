// SPDX-License-Identifier: Apache-2.0
//
// Writes the table [data.hdf5], as shards keep it.
#include "trireme/data/arrays/array_form.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::data {
namespace {

std::string paths_in_words(const std::vector<std::string>& paths) {
  std::vector<std::string> words;
  for (const std::string& path : paths)
    words.push_back(fmt::format("\"{}{}\"", path.starts_with('/') ? "" : "/", path));
  return words.size() == 1 ? words[0] : fmt::format("[{}]", fmt::join(words, ", "));
}

std::string or_none(const std::optional<double>& number) {
  return number ? fmt::format("{}", *number) : "none";
}

}  // namespace

std::vector<std::string> table_lines(const ArrayForm& arrays, const TargetOptions& target) {
  std::vector<std::string> lines{
      "data.hdf5.input = " + paths_in_words(arrays.input),
      "data.hdf5.target = " + paths_in_words(arrays.target),
      fmt::format("data.hdf5.layout = \"{}\"", arrays.layout),
      fmt::format("data.hdf5.samples = \"{}\"",
                  arrays.samples == ArrayForm::Samples::rows ? "rows" : "files"),
      fmt::format("data.hdf5.transform = \"{}\"",
                  arrays.transform == ArrayForm::Transform::none ? "none" : "log1p"),
      "data.hdf5.fill = " + or_none(arrays.fill),
      fmt::format("target.kind = \"{}\"", target.answer().word)};
  if (target.answer().is_map) {
    lines.push_back(fmt::format("data.hdf5.target_layout = \"{}\"", arrays.target_layout));
    lines.push_back("target.ignore = " + or_none(target.ignore));
  }
  return lines;
}

}  // namespace trireme::data
