// SPDX-License-Identifier: Apache-2.0
//
// Reads the options of `trireme shard` about the samples of a source of images: which ones, their
// labels and the names of their classes. The names may be in a file, in a dataset or in the
// command.
#include "sample_options.hpp"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>

#include "image_storage.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/base/utf8.hpp"
#include "trireme/data/shards/shard.hpp"
#include "trireme/io/file.hpp"

namespace trireme::app {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t max_class_name_bytes = 256;
// The limit of lists of strings in an HDF5 file that is read again.
constexpr std::int64_t max_classes_bytes = std::int64_t{32} << 20;
constexpr std::int64_t max_labels_bytes = std::int64_t{256} << 20;

/// Returns a text file without the byte order mark that some programs put at its beginning.
std::string read_utf8_file(const std::string& path, std::int64_t max_bytes) {
  std::string text = io::read_text_file(path, max_bytes);
  constexpr std::string_view mark = "\xef\xbb\xbf";
  if (text.starts_with(mark)) text.erase(0, mark.size());
  return text;
}

/// Returns the names of --classes: those of a dataset, the lines of a file, or the words given.
std::vector<std::string> named_classes(const std::vector<std::string>& words) {
  if (words.size() != 1) return words;
  const std::string& path = words[0];
  std::error_code error;
  validate(fs::exists(path, error),
           "--classes {}: is neither a file nor a dataset, nor several names between commas",
           printable(path));
  std::vector<std::string> names;
  if (fs::is_directory(path, error)) {
    for (const std::string& shard : data::shard_paths(path))
      if (names.empty()) names = data::describe_shard(shard).classes;
    validate(!names.empty(), "--classes {}: its shards name no classes", path);
    return names;
  }
  const std::string text = read_utf8_file(path, max_classes_bytes);
  validate(!text.starts_with('{') && !text.starts_with('['),
           "--classes {}: begins as JSON does; it must have one name a line", printable(path));
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view line = take_line(rest);
    if (!line.empty()) names.emplace_back(line);
  }
  validate(!names.empty(), "--classes {}: is empty; it must have one name a line", path);
  return names;
}

}  // namespace

SampleRange parse_range(const std::string& text, std::int64_t available) {
  if (text.empty()) return {0, available};
  const std::size_t colon = text.find(':');
  const auto bound = [&](std::string_view part, std::int64_t if_empty) {
    const std::optional<std::int64_t> value = part.empty() ? if_empty : parse_integer(part);
    validate(colon != std::string::npos && value && *value >= 0,
             "--range {}: must be BEGIN:END, as in 0:50000", printable(text));
    return *value;
  };
  const std::string_view whole = text;
  const SampleRange range{bound(whole.substr(0, colon), 0),
                          bound(whole.substr(std::min(colon, whole.size() - 1) + 1), available)};
  validate(range.begin < range.end, "--range {}: BEGIN must be below END", printable(text));
  validate(range.end <= available, "--range {}: the source has samples 0:{}", printable(text),
           available);
  return range;
}

void check_out_is_outside(const ShardCommand& command) {
  std::error_code error;
  const fs::path out = fs::weakly_canonical(command.out, error);
  for (const std::string& source : command.sources) {
    if (!fs::is_directory(source, error)) continue;
    const fs::path folder = fs::weakly_canonical(source, error);
    const auto [end, ignored] = std::mismatch(folder.begin(), folder.end(), out.begin(), out.end());
    validate(end != folder.end(), "--out {}: is in the source {}; name a folder outside of it",
             command.out, source);
  }
}

void check_classes(const std::vector<std::string>& classes, const std::string& where) {
  std::set<std::string_view> names;
  std::size_t longest = 0;
  for (const std::string& name : classes) {
    validate(!name.empty(), "{}: the name of class {} is empty", where, names.size());
    validate(is_utf8(name), "{}: the name {} is not UTF-8", where, printable(name));
    validate(name.size() <= max_class_name_bytes && printable(name, max_class_name_bytes) == name,
             "{}: the name \"{}\" is longer than {} bytes or has control characters", where,
             printable(name, 60), max_class_name_bytes);
    validate(names.insert(name).second, "{}: {} is named twice", where, printable(name));
    longest = std::max(longest, name.size());
  }
  validate(static_cast<std::int64_t>(longest * classes.size()) <= max_classes_bytes,
           "{}: {} names of up to {} bytes do not fit in a shard, which has {} for them", where,
           classes.size(), longest, format_bytes(max_classes_bytes));
}

OptionFiles read_options(const ShardCommand& command) {
  OptionFiles options;
  parse_storage(command);
  parse_range(command.range, std::numeric_limits<std::int64_t>::max());
  options.classes = named_classes(command.classes);
  check_classes(options.classes, "--classes");
  if (!command.labels.empty()) {
    options.labels = {command.labels, read_utf8_file(command.labels, max_labels_bytes)};
    validate(!options.labels.text.empty(), "{}: is empty; a line is NAME LABEL", command.labels);
  }
  return options;
}

}  // namespace trireme::app
