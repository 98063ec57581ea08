// SPDX-License-Identifier: Apache-2.0
//
// Shards of images with targets of any kind, as `trireme shard hdf5` makes them.
//
//   /images   [samples, height, width, channels]
//   /targets  float32 or float64 [samples, n], [samples, height, width, components], or whole
//             numbers [samples, height, width], where _FillValue does not count; attributes kind,
//             classes
//   /table    lines "key = value": the table [data.hdf5] and the kind of target of the deck
#include "array_shard.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "array_index.hpp"
#include "data/shards/shard_limits.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::data {
namespace {

using namespace std::string_literals;

constexpr const char* ignore_key = "target.ignore = ";

/// Returns whether a file says that it is a shard.
bool is_called_shard(const io::Hdf5Index& file) {
  try {
    return file.has_attribute("/", "format") &&
           file.attribute_string("/", "format") == "trireme-shard";
  } catch (const InputError&) {
    return false;  // the attribute of another program
  }
}

}  // namespace

SampleForm form_of_shard(const SampleForm& form, const StoredTarget& stored) {
  SampleForm own = form;
  own.arrays = {.input = {"images"}, .target = {"targets"}, .layout = "hwc"};
  own.target.kind = stored.kind;
  if (form.target_use == TargetUse::of_shards) own.target.classes = stored.extents.count;
  if (own.target.answer().has_float_targets) own.arrays.target_layout = "hwc";
  return own;
}

StoredTarget read_stored_target(const io::Hdf5Reader& reader, std::int64_t samples) {
  const io::Hdf5Index& file = reader.index();
  StoredTarget target;
  if (!file.has("targets") || file.has("labels")) return target;
  const io::StoredDataset& stored = file.dataset("targets");
  const std::string word = file.attribute_string("targets", "kind");
  const std::span<const Answer> known = target_answers();
  const auto answer =
      std::find_if(known.begin(), known.end(), [&](const Answer& one) { return word == one.word; });
  validate(answer != known.end() && !answer->is_one_class(),
           "{}: its attribute kind = \"{}\" is unknown; one of \"classes\", \"values\", \"pixels\" "
           "and \"field\" is",
           stored.location, printable(word));
  target.kind = answer->kind;
  const std::vector<std::int64_t>& shape = stored.shape;
  const std::size_t dimensions = !answer->is_map ? 2 : answer->has_float_targets ? 4 : 3;
  validate(shape.size() == dimensions && shape[0] == samples &&
               std::all_of(shape.begin() + 1, shape.end(),
                           [](std::int64_t extent) { return extent >= 1 && extent <= max_extent; }),
           "{}: has the extents [{}], which are no targets of kind \"{}\" of {}", stored.location,
           fmt::join(shape, ", "), answer->word, counted(samples, "sample", "samples"));
  if (!answer->is_map) {
    target.extents.count = shape[1];
    return target;
  }
  target.extents = {answer->has_float_targets ? shape[3] : file.attribute_int("targets", "classes"),
                    shape[1], shape[2]};
  validate(target.extents.count >= 1 && target.extents.count <= max_label + 1,
           "{}: has {} classes; 1 to {} can be", stored.location, target.extents.count,
           max_label + 1);
  return target;
}

std::string preparation_of(const std::vector<std::string>& lines) {
  std::string text;
  for (const char* key : {"data.hdf5.transform = ", "data.hdf5.fill = "})
    for (const std::string& line : lines)
      if (line.starts_with(key)) text += (text.empty() ? "" : ", ") + line;
  return text;
}

void check_ignore(const io::Hdf5Index& file, const SampleForm& form) {
  if (!form.target.ignore || form.target_use == TargetUse::none || !file.has("table")) return;
  const std::string given = fmt::format("{}{}", ignore_key, *form.target.ignore);
  for (const std::string& line : file.strings("table"))
    validate(!line.starts_with(ignore_key) || line == given || line == ignore_key + "none"s,
             "{}: was made with {}, so {} finds no number to ignore; make the shards again with "
             "`trireme shard hdf5`, or remove the key",
             file.path(), printable(line), given);
}

bool is_shard_of_table(const io::Hdf5Reader& reader, const SampleForm& form) {
  const io::Hdf5Index& file = reader.index();
  if (!is_called_shard(file) || !file.has("table")) return false;
  const std::vector<std::string>& there = file.strings("table");
  for (const std::string& line : table_lines(form.arrays, form.target)) {
    const std::string key = line.substr(0, line.find(" = ") + 3);
    const bool is_of_target = key.starts_with("target.") || key.starts_with("data.hdf5.target");
    if (is_of_target && form.target_use == TargetUse::none) continue;
    const auto stored = std::find_if(there.begin(), there.end(), [&](const std::string& other) {
      return other.starts_with(key);
    });
    const std::string found = stored == there.end() ? key + "unknown" : *stored;
    validate(found == line,
             "{}: was made with {}, but the deck has {}; make the shards again with `trireme shard "
             "hdf5`, or remove the table [data.hdf5], which shards do not need",
             file.path(), printable(found), printable(line));
  }
  return true;
}

}  // namespace trireme::data
