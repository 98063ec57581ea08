// SPDX-License-Identifier: Apache-2.0
//
// Describes files of other programs for `trireme inspect`: their datasets, and tables [data.hdf5]
// and [target] that would fit.
//
// They are a guess from names, extents and types. The first dimension counts samples, and the input
// is the largest dataset with as many as a target, together with others of its extents and type. A
// target is, the first of these that is there:
// - a map: a dataset with a name of targets, and the height and width of the input;
// - a class: a dataset of one whole number for each sample;
// - values: all datasets of a few real numbers for each sample.
#include "trireme/data/arrays/array_description.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <set>

#include <fmt/ranges.h>

#include "array_index.hpp"
#include "data/shards/shard_header.hpp"
#include "trireme/base/text.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::data {
namespace {

std::string type_name(const io::StoredDataset& dataset) {
  switch (dataset.kind) {
    case io::StoredDataset::Kind::integer:
      return fmt::format("{}int{}", dataset.is_signed ? "" : "u", 8 * dataset.element_bytes);
    case io::StoredDataset::Kind::real: return fmt::format("float{}", 8 * dataset.element_bytes);
    case io::StoredDataset::Kind::text: return "text";
    default: return "other";
  }
}

ArrayDataset describe(const io::Hdf5Index& file, const std::string& name) {
  ArrayDataset described;
  described.path = "/" + name;
  try {
    const io::StoredDataset& stored = file.dataset(name);
    described.type = type_name(stored);
    described.shape = stored.shape;
    if (!stored.is_number()) return described;
    described.storage = storage_of(stored);
    described.chunk = stored.chunk;
    described.is_compressed = !stored.filters.empty();
    const ArrayVariable packed = packed_variable(file, name, stored);
    described.scale = packed.scale;
    described.offset = packed.offset;
    described.missing = packed.missing;
    described.is_coordinate = file.has_attribute(name, "CLASS") &&
                              file.attribute_string(name, "CLASS") == "DIMENSION_SCALE";
  } catch (const InputError& error) {
    described.problem = error.what();
  }
  return described;
}

/// Returns whether a dataset stands for a dimension of netCDF alone.
bool is_bare_dimension(const io::Hdf5Index& file, const std::string& name) {
  try {
    return file.has_attribute(name, "NAME") &&
           file.attribute_string(name, "NAME").starts_with("This is a netCDF dimension but not");
  } catch (const InputError&) {
    return false;
  }
}

bool is_usable(const ArrayDataset& dataset) {
  return dataset.problem.empty() && !dataset.storage.empty() && !dataset.shape.empty() &&
         dataset.shape[0] > 1;
}

/// Returns the number of elements; a double cannot overflow.
double elements(const ArrayDataset& dataset) {
  double product = 1;
  for (const std::int64_t extent : dataset.shape) product *= static_cast<double>(extent);
  return product;
}

bool is_whole(const ArrayDataset& dataset) { return dataset.type.find("int") != std::string::npos; }

/// Returns the numbers of one sample.
double numbers(const ArrayDataset& dataset) {
  return elements(dataset) / static_cast<double>(dataset.shape[0]);
}

/// Returns whether the name of a dataset is one that targets often have.
bool has_name_of_targets(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto has = [&](const char* word) { return name.find(word) != std::string::npos; };
  return name == "y" || has("label") || has("class") || has("target") || has("mask") ||
         has("truth") || has("segment");
}

/// Returns whether a dataset has the bounds of a coordinate (the CF conventions).
bool are_bounds(const ArrayDataset& dataset) {
  return dataset.path.ends_with("_bnds") || dataset.path.ends_with("_bounds");
}

/// Returns the letters of the dimensions of a sample: channels are the fewest.
std::string guess_layout(const std::vector<std::int64_t>& shape) {
  if (shape.size() == 2) return "c";
  if (shape.size() == 3) return "hw";
  return shape[1] < shape[3] ? "chw" : "hwc";
}

/// Returns the extents [height, width] of a sample.
std::array<std::int64_t, 2> map_extents(const std::vector<std::int64_t>& shape) {
  const std::size_t first = guess_layout(shape) == "chw" ? 2 : 1;
  return {shape[first], shape[first + 1]};
}

/// Returns by how much a map is smaller than an input in both directions; 0: it is no map of it.
std::int64_t reduction(const ArrayDataset& input, const ArrayDataset& map) {
  const auto [height, width] = map_extents(input.shape);
  const auto [map_height, map_width] = map_extents(map.shape);
  if (map_height < 1 || map_width < 1 || height % map_height != 0) return 0;
  const std::int64_t factor = height / map_height;
  return factor * map_width == width ? factor : 0;
}

using DatasetTest = std::function<bool(const ArrayDataset&)>;

/// Returns the largest dataset that may be an input and passes a test; null if there is none.
const ArrayDataset* largest_input(const std::vector<ArrayDataset>& datasets,
                                  const DatasetTest& test) {
  const ArrayDataset* input = nullptr;
  for (const ArrayDataset& one : datasets) {
    const bool may_be_input = is_usable(one) && one.shape.size() >= 2 && one.shape.size() <= 4 &&
                              numbers(one) > 1 && test(one);
    if (may_be_input && (input == nullptr || elements(one) > elements(*input))) input = &one;
  }
  return input;
}

/// Returns the table of an input, and others of its extents and type but the targets.
ArrayForm form_of(const ArrayDataset& input, const std::vector<std::string>& targets,
                  const std::vector<ArrayDataset>& datasets) {
  ArrayForm form{.input = {}, .target = targets, .layout = guess_layout(input.shape)};
  for (const ArrayDataset& one : datasets)
    if (one.shape == input.shape && one.type == input.type && is_usable(one) &&
        std::find(targets.begin(), targets.end(), one.path) == targets.end())
      form.input.push_back(one.path);
  return form;
}

std::optional<ArrayGuess> guess_map(const std::vector<ArrayDataset>& datasets) {
  for (const ArrayDataset& map : datasets) {
    const bool may_be_map = is_usable(map) && has_name_of_targets(map.path) &&
                            (map.shape.size() == 3 || (map.shape.size() == 4 && !is_whole(map)));
    if (!may_be_map) continue;
    const ArrayDataset* const input = largest_input(datasets, [&](const ArrayDataset& one) {
      return &one != &map && one.shape.size() >= 3 && one.shape[0] == map.shape[0] &&
             reduction(one, map) > 0 && !has_name_of_targets(one.path);
    });
    if (input == nullptr) continue;
    ArrayGuess guess{form_of(*input, {map.path}, datasets),
                     is_whole(map) ? AnswerKind::pixels : AnswerKind::field};
    guess.form.target_layout = guess_layout(map.shape);
    guess.reduction = reduction(*input, map);
    return guess;
  }
  return std::nullopt;
}

std::optional<ArrayGuess> guess_class(const std::vector<ArrayDataset>& datasets) {
  const auto may_be_class = [](const ArrayDataset& one) {
    return is_usable(one) && numbers(one) == 1 && is_whole(one) && !one.is_coordinate;
  };
  std::set<std::int64_t> counts;
  for (const ArrayDataset& one : datasets)
    if (may_be_class(one)) counts.insert(one.shape[0]);
  const ArrayDataset* const input = largest_input(
      datasets, [&](const ArrayDataset& one) { return counts.contains(one.shape[0]); });
  if (input == nullptr) return std::nullopt;
  std::vector<std::string> target;
  for (const ArrayDataset& one : datasets)
    if (may_be_class(one) && one.shape[0] == input->shape[0] &&
        (target.empty() || (has_name_of_targets(one.path) && !has_name_of_targets(target[0]))))
      target = {one.path};
  return ArrayGuess{form_of(*input, target, datasets), AnswerKind::one_class};
}

std::optional<ArrayGuess> guess_values(const std::vector<ArrayDataset>& datasets) {
  constexpr double max_values = 64, least_ratio = 8;  // of the numbers of an input and a target
  const ArrayDataset* const input =
      largest_input(datasets, [](const ArrayDataset& one) { return one.shape.size() >= 3; });
  if (input == nullptr) return std::nullopt;
  std::vector<std::string> targets;
  for (const ArrayDataset& one : datasets)
    if (is_usable(one) && !one.is_coordinate && !are_bounds(one) &&
        one.shape[0] == input->shape[0] && numbers(one) <= max_values &&
        least_ratio * numbers(one) <= numbers(*input))
      targets.push_back(one.path);
  if (targets.empty()) return std::nullopt;
  // Names of targets go before others, as numbers of runs.
  if (std::any_of(targets.begin(), targets.end(), has_name_of_targets))
    std::erase_if(targets, [](const std::string& path) { return !has_name_of_targets(path); });
  return ArrayGuess{form_of(*input, targets, datasets), AnswerKind::values};
}

std::optional<ArrayGuess> guess(const std::vector<ArrayDataset>& datasets) {
  std::optional<ArrayGuess> found = guess_map(datasets);
  if (!found) found = guess_class(datasets);
  return found ? found : guess_values(datasets);
}

std::string toml_paths(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? keys::quoted(paths[0]) : fmt::format("[{}]", keys::quoted_list(paths));
}

}  // namespace

ArrayFileDescription describe_array_file(const io::Hdf5Index& file) {
  ArrayFileDescription description;
  for (const std::string& name : file.list_datasets("/"))
    if (!is_bare_dimension(file, name)) description.datasets.push_back(describe(file, name));
  description.guess = guess(description.datasets);
  return description;
}

std::string list_in_words(const ArrayFileDescription& description) {
  std::string text;
  for (const ArrayDataset& dataset : description.datasets) {
    text += fmt::format("  {}: ", printable(dataset.path));
    if (!dataset.problem.empty()) {
      text += fmt::format("cannot be read ({})\n", dataset.problem);
      continue;
    }
    text += fmt::format("{} [{}]", dataset.type, fmt::join(dataset.shape, ", "));
    if (!dataset.storage.empty()) text += ", " + dataset.storage;
    if (!dataset.chunk.empty()) text += fmt::format(" [{}]", fmt::join(dataset.chunk, ", "));
    if (dataset.is_compressed) text += ", compressed";
    if (dataset.scale != 1 || dataset.offset != 0)
      text += fmt::format(", value = stored * {} + {}", dataset.scale, dataset.offset);
    if (!dataset.missing.empty())
      text += fmt::format(", missing: {}", fmt::join(dataset.missing, ", "));
    text += "\n";
  }
  return text;
}

std::string to_text(const std::string& path, const ArrayFileDescription& description) {
  std::string text = fmt::format("{}: HDF5 file of another program, {}\n", path,
                                 counted(std::ssize(description.datasets), "dataset", "datasets"));
  text += list_in_words(description);
  if (!description.guess) {
    text +=
        "no table is proposed: no dataset looks like targets of the samples of a larger one; name "
        "input, target and layout yourself (docs/reference/deck.md, data.hdf5 and target)";
    const ArrayDataset* const input =
        largest_input(description.datasets, [](const ArrayDataset&) { return true; });
    if (input == nullptr) return text + "\n";
    return text + fmt::format(
                      ", as in\n\n[data.hdf5]\ninput = {}\ntarget = \"/...\"\nlayout = "
                      "\"{}\"\n",
                      keys::quoted(input->path), guess_layout(input->shape));
  }
  const auto& [form, answer, reduction] = *description.guess;
  text += fmt::format(
      "a table for the deck that would fit:\n\n"
      "[data.hdf5]\ninput = {}\ntarget = {}\nlayout = \"{}\"\n",
      toml_paths(form.input), toml_paths(form.target), form.layout);
  if (form.target_layout != ArrayForm().target_layout)
    text += fmt::format("target_layout = \"{}\"\n", form.target_layout);
  if (answer != AnswerKind::one_class)
    text += fmt::format("\n[target]\nkind = \"{}\"\n", answer_of(answer).word);
  if (answer == AnswerKind::pixels) text += "classes = 2                # set their number\n";
  if (reduction > 1)
    text += fmt::format(
        "\n# The model must make maps that are {} times smaller than its samples.\n", reduction);
  return text;
}

}  // namespace trireme::data
