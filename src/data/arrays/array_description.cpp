// SPDX-License-Identifier: Apache-2.0
//
// Describes files of other programs for `trireme inspect`: their datasets, and a table [data.hdf5]
// that would fit.
//
// The table is a guess from extents and types: classes are whole numbers, one for each index of the
// first dimension; the input is the largest dataset with that many, together with others of its
// extents and type.
#include "trireme/data/arrays/array_description.hpp"

#include <algorithm>
#include <cctype>
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

bool may_be_classes(const ArrayDataset& dataset) {
  return is_usable(dataset) && elements(dataset) == static_cast<double>(dataset.shape[0]) &&
         dataset.type.find("int") != std::string::npos;
}

/// Returns whether the name of a dataset is one that classes often have.
bool has_name_of_classes(const std::string& path) {
  std::string name = path.substr(path.rfind('/') + 1);
  std::transform(name.begin(), name.end(), name.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return name == "y" || name.find("label") != std::string::npos ||
         name.find("class") != std::string::npos || name.find("target") != std::string::npos;
}

/// Returns the letters of the dimensions of a sample: channels are the fewest.
std::string guess_layout(const std::vector<std::int64_t>& shape) {
  if (shape.size() == 2) return "c";
  if (shape.size() == 3) return "hw";
  return shape[1] < shape[3] ? "chw" : "hwc";
}

std::optional<ArrayForm> guess_form(const std::vector<ArrayDataset>& datasets) {
  std::set<std::int64_t> counts;  // of classes
  for (const ArrayDataset& one : datasets)
    if (may_be_classes(one)) counts.insert(one.shape[0]);
  const ArrayDataset* input = nullptr;
  for (const ArrayDataset& one : datasets) {
    const bool may_be_input = is_usable(one) && one.shape.size() >= 2 && one.shape.size() <= 4 &&
                              elements(one) > static_cast<double>(one.shape[0]) &&
                              counts.contains(one.shape[0]);
    if (may_be_input && (input == nullptr || elements(one) > elements(*input))) input = &one;
  }
  if (input == nullptr) return std::nullopt;
  ArrayForm form;
  for (const ArrayDataset& one : datasets) {
    if (one.shape == input->shape && one.type == input->type && is_usable(one))
      form.input.push_back(one.path);
    const bool is_target = may_be_classes(one) && one.shape[0] == input->shape[0];
    if (is_target && (form.target.empty() ||
                      (has_name_of_classes(one.path) && !has_name_of_classes(form.target.front()))))
      form.target = {one.path};
  }
  form.layout = guess_layout(input->shape);
  return form;
}

std::string toml_paths(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? keys::quoted(paths[0]) : fmt::format("[{}]", keys::quoted_list(paths));
}

}  // namespace

ArrayFileDescription describe_array_file(const io::Hdf5Index& file) {
  ArrayFileDescription description;
  for (const std::string& name : file.list_datasets("/"))
    if (!is_bare_dimension(file, name)) description.datasets.push_back(describe(file, name));
  description.form = guess_form(description.datasets);
  return description;
}

std::string to_text(const std::string& path, const ArrayFileDescription& description) {
  std::string text = fmt::format("{}: HDF5 file of another program, {}\n", path,
                                 counted(std::ssize(description.datasets), "dataset", "datasets"));
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
  if (!description.form)
    return text +
           "no table is proposed: no dataset has one whole number for each sample of a larger one; "
           "name input, target and layout yourself (target.kind = \"values\" for numbers as "
           "targets)\n";
  const ArrayForm& form = *description.form;
  return text + fmt::format(
                    "a table for the deck that would fit:\n\n"
                    "[data.hdf5]\ninput = {}\ntarget = {}\nlayout = \"{}\"\n",
                    toml_paths(form.input), toml_paths(form.target), form.layout);
}

}  // namespace trireme::data
