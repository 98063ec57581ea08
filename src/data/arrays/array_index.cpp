// SPDX-License-Identifier: Apache-2.0
//
// Finds the samples in HDF5 and netCDF-4 files of other programs, as the table [data.hdf5] says.
//
// The files are untrusted, like shards: a child process has described them, and each extent was
// compared with the size of the file. Attributes follow the conventions of netCDF (CF 1.11, section
// 8.1, and the NetCDF Users Guide): value = stored * scale_factor + add_offset; _FillValue and
// missing_value are stored values that stand for none. All other attributes are ignored.
#include "array_index.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include <fmt/ranges.h>

#include "array_shard.hpp"
#include "data/labels/image_labels.hpp"
#include "data/shards/shard_limits.hpp"
#include "data/shards/stored_list.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/kernels/types.hpp"

namespace trireme::data {
namespace {

constexpr std::string_view letters = "hwc";

/// Returns the datasets of numbers of a file as text, for messages.
std::string list_numbers(const io::Hdf5Index& file) {
  constexpr std::size_t max_listed = 8;
  std::vector<std::string> listed;
  std::size_t more = 0;
  for (const std::string& name : file.list_datasets("/")) {
    try {
      const io::StoredDataset& dataset = file.dataset(name);
      if (!dataset.is_number() || dataset.shape.empty()) continue;
      if (listed.size() < max_listed)
        listed.push_back(fmt::format("/{} [{}]", printable(name), fmt::join(dataset.shape, ", ")));
      else
        ++more;
    } catch (const InputError&) {
      // It cannot be read, so it is no help.
    }
  }
  if (listed.empty()) return "no arrays of numbers";
  return fmt::format("{}{}", fmt::join(listed, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

const io::StoredDataset& dataset_of(const io::Hdf5Index& file, const char* key,
                                    const std::string& path) {
  validate(file.has(path), "{}: data.hdf5.{} = \"{}\": the file has no such dataset; it has {}",
           file.path(), key, printable(path), list_numbers(file));
  const io::StoredDataset& dataset = file.dataset(path);
  validate(dataset.is_number(),
           "{}: holds {}; data.hdf5.{} takes integers of up to 64 bits and real numbers of 16, 32 "
           "or 64 bits",
           dataset.location,
           dataset.kind == io::StoredDataset::Kind::text ? "text"
                                                         : "no plain numbers (compound, complex, "
                                                           "lists or another type)",
           key);
  return dataset;
}

/// Returns the dataset with samples as the first dimension. Throws InputError if the whole of a
/// compressed one, which then is one sample, does not fit in memory.
io::StoredDataset with_sample_dimension(io::StoredDataset dataset, const ArrayForm& form) {
  if (form.samples == ArrayForm::Samples::rows) return dataset;
  constexpr std::int64_t most = std::int64_t{256} << 20;
  validate(
      dataset.chunk.empty() || dataset.bytes() <= most,
      "{}: a file is a sample, and its chunks unpack to {}; up to {} can be read; `h5repack -l "
      "CONTI OLD.h5 NEW.h5` writes a file without chunks",
      dataset.location, format_bytes(dataset.bytes()), format_bytes(most));
  dataset.shape.insert(dataset.shape.begin(), 1);
  if (!dataset.chunk.empty()) dataset.chunk.insert(dataset.chunk.begin(), 1);
  return dataset;
}

std::optional<double> number_attribute(const io::Hdf5Index& file, const std::string& path,
                                       const char* name) {
  if (!file.has_attribute(path, name)) return std::nullopt;
  return file.attribute_double(path, name);
}

/// Returns the elements of one row. Throws InputError if there are none, or more than a sample may
/// have.
std::int64_t elements_of_row(const io::StoredDataset& rows, std::int64_t most) {
  std::int64_t elements = 1;
  for (std::size_t i = 1; i < rows.shape.size(); ++i) {
    validate(rows.shape[i] >= 1 && rows.shape[i] <= most / elements,
             "{}: has the extents [{}]; a sample can have 1 to {} numbers", rows.location,
             fmt::join(rows.shape, ", "), most);
    elements *= rows.shape[i];
  }
  return elements;
}

/// Returns a dataset of the input, or of a target that is a map, whose rows have the dimensions of
/// its layout.
ArrayVariable variable_of(const io::Hdf5Index& file, bool is_target, const std::string& path,
                          const ArrayForm& form) {
  const std::string& layout = is_target ? form.target_layout : form.layout;
  io::StoredDataset stored = dataset_of(file, is_target ? "target" : "input", path);
  const bool has_rows = form.samples == ArrayForm::Samples::rows;
  const std::size_t dimensions = layout.size() + (has_rows ? 1 : 0);
  // A number for each sample is a vector of one.
  if (layout == "c" && stored.shape.size() + 1 == dimensions) {
    stored.shape.push_back(1);
    if (!stored.chunk.empty()) stored.chunk.push_back(1);
  }
  std::vector<std::string> names;
  if (has_rows) names.emplace_back("samples");
  for (const char letter : layout) names.emplace_back(1, letter);
  validate(stored.shape.size() == dimensions,
           "{}: has {} dimensions [{}], but data.hdf5.{} = \"{}\" describes {} [{}]; give the "
           "letters of the dimensions of one sample{}",
           stored.location, stored.shape.size(), fmt::join(stored.shape, ", "),
           is_target ? "target_layout" : "layout", layout, dimensions, fmt::join(names, ", "),
           has_rows && stored.shape.size() == layout.size()
               ? ", or samples = \"files\" if each file is one"
           : !has_rows && stored.shape.size() == layout.size() + 1
               ? ", or samples = \"rows\" if the first dimension counts samples"
               : "");
  ArrayVariable variable = packed_variable(file, path, with_sample_dimension(stored, form));
  elements_of_row(variable.rows, max_input_numbers);
  return variable;
}

/// Reads one class for each sample: whole numbers, of an integer or real type, [samples] or
/// [samples, 1 ...].
std::vector<std::int32_t> read_classes(const io::Hdf5Reader& reader, const ArrayForm& form,
                                       std::int64_t samples, const ArrayVariable& input) {
  validate(form.target.size() == 1,
           "{}: data.hdf5.target names {} datasets, but a class is one number; name one",
           reader.path(), form.target.size());
  const std::string& path = form.target.front();
  const io::StoredDataset stored =
      with_sample_dimension(dataset_of(reader.index(), "target", path), form);
  validate(!stored.shape.empty() && stored.elements() == stored.shape[0],
           "{}: has the extents [{}]; classes are one number for each sample, [samples]",
           stored.location, fmt::join(reader.index().dataset(path).shape, ", "));
  validate(stored.shape[0] == samples, "{}: has {} numbers for the {} samples of {}",
           stored.location, stored.shape[0], samples, input.rows.location);
  check_list(stored, input.rows);
  const ArrayVariable packing = packed_variable(reader.index(), path, stored);
  validate(packing.scale == 1 && packing.offset == 0,
           "{}: has the attributes scale_factor or add_offset, but classes are whole numbers",
           stored.location);
  std::vector<std::int32_t> labels;
  labels.reserve(static_cast<std::size_t>(samples));
  constexpr std::int64_t piece = 1 << 20;
  std::vector<double> values;
  std::vector<std::int64_t> start(stored.shape.size(), 0), count = stored.shape;
  const std::int64_t chunk =
      stored.chunk.empty() ? 1 : std::max<std::int64_t>(1, std::min(stored.chunk[0], samples));
  const std::int64_t step = chunk * std::max<std::int64_t>(1, piece / chunk);
  for (std::int64_t first = 0; first < samples; first += step) {
    start[0] = first;
    count[0] = std::min(step, samples - first);
    values.resize(static_cast<std::size_t>(count[0]));
    reader.read(stored, start, count, io::Hdf5Number::float64, values.data());
    for (const double& value : values) {
      const std::int64_t sample = first + (&value - values.data());
      validate(
          std::find(packing.missing.begin(), packing.missing.end(), value) == packing.missing.end(),
          "{}: sample {} has no class (the value {} stands for a missing one); leave such "
          "samples out",
          stored.location, sample, value);
      validate(
          value >= 0 && value <= max_label && value == std::floor(value),
          "{}: {} of sample {} is not a class; classes are whole numbers from 0 to {} (numbers "
          "as targets need target.kind = \"values\")",
          stored.location, value, sample, max_label);
      labels.push_back(static_cast<std::int32_t>(value));
    }
  }
  return labels;
}

/// Finds the vector of each sample: datasets [samples ...] of any extents, one behind the other.
std::vector<ArrayVariable> find_vectors(const io::Hdf5Index& file, const SampleForm& sample,
                                        const ArrayVariable& input) {
  std::vector<ArrayVariable> targets;
  std::int64_t count = 0;
  for (const std::string& path : sample.arrays.target) {
    ArrayVariable& target = targets.emplace_back(packed_variable(
        file, path, with_sample_dimension(dataset_of(file, "target", path), sample.arrays)));
    const std::vector<std::int64_t>& shape = target.rows.shape;
    validate(!shape.empty() && shape[0] == input.rows.shape[0],
             "{}: has the extents [{}]; {} are [samples ...], for each of the {} samples of {}",
             target.rows.location, fmt::join(file.dataset(path).shape, ", "),
             sample.target.answer().parts, input.rows.shape[0], input.rows.location);
    count += elements_of_row(target.rows, max_target_numbers);
    validate(count <= max_target_numbers, "{}: a sample has more than {} numbers in its targets",
             target.rows.location, max_target_numbers);
  }
  check_target_size(sample.target, count);
  return targets;
}

/// Finds the map of each sample: one dataset of classes, or datasets that are stacked as
/// components.
std::vector<ArrayVariable> find_maps(const io::Hdf5Index& file, const SampleForm& sample,
                                     const ArrayVariable& input) {
  const ArrayForm& form = sample.arrays;
  const bool classes = !sample.target.answer().has_float_targets;
  validate(!classes || form.target.size() == 1,
           "{}: data.hdf5.target names {} datasets, but a pixel has one class; name one",
           file.path(), form.target.size());
  std::vector<ArrayVariable> targets;
  std::int64_t components = 0;
  for (const std::string& path : form.target) {
    targets.push_back(variable_of(file, true, path, form));
    const ArrayVariable &target = targets.back(), &first = targets.front();
    const auto [height, width, own] = array_extents(target, form.target_layout);
    const auto [first_height, first_width, unused] = array_extents(first, form.target_layout);
    validate(target.rows.shape[0] == input.rows.shape[0], "{}: has {} samples, but {} has {}",
             target.rows.location, target.rows.shape[0], input.rows.location, input.rows.shape[0]);
    validate(
        height == first_height && width == first_width,
        "{}: has {} x {} pixels (h, w), but {} has {} x {}; targets are stacked as components, "
        "so these must be equal",
        target.rows.location, height, width, first.rows.location, first_height, first_width);
    components += own;
    validate(
        !classes || own == 1,
        "{}: has {} components for each pixel, but target.kind = \"pixels\" takes the number of "
        "its class; write that (as numpy.argmax does), without c in data.hdf5.target_layout",
        target.rows.location, own);
    validate(components * height * width <= max_map_numbers,
             "{}: a sample has more than {} numbers in its targets", target.rows.location,
             max_map_numbers);
  }
  if (!classes) check_target_size(sample.target, components);
  return targets;
}

/// Returns the type of an input as an image; float32 unless its bits can be taken as they are.
DType type_of(const ArrayVariable& input) {
  const io::StoredDataset& rows = input.rows;
  if (input.is_packed()) return DType::float32;
  if (rows.kind == io::StoredDataset::Kind::real)
    return rows.element_bytes == 2 ? DType::float16 : DType::float32;
  if (!rows.is_signed && rows.element_bytes == 1) return DType::uint8;
  if (!rows.is_signed && rows.element_bytes == 2) return DType::uint16;
  return DType::float32;
}

}  // namespace

namespace {

/// Returns the value that netCDF puts where nothing was written, for types with such a default and
/// no attribute (the NetCDF Users Guide, "Fill Values"). Types of 8 bits have none there. uint16
/// has none here: its largest value may be one of an image.
std::optional<double> default_fill(const io::Hdf5Index& file, const io::StoredDataset& rows) {
  if (!file.has_attribute("/", "_NCProperties")) return std::nullopt;
  if (rows.kind == io::StoredDataset::Kind::real)
    return static_cast<double>(9.9692099683868690e+36F);
  switch (rows.is_signed ? rows.element_bytes : 0) {
    case 2: return -32767;
    case 4: return -2147483647;
    case 8: return -9223372036854775806.0;
    default: return std::nullopt;
  }
}

}  // namespace

ArrayVariable packed_variable(const io::Hdf5Index& file, const std::string& path,
                              io::StoredDataset dataset) {
  ArrayVariable variable{.rows = std::move(dataset)};
  if (const auto value = file.has_attribute(path, "_Unsigned") ? file.attribute(path, "_Unsigned")
                                                               : std::optional<io::Hdf5Value>()) {
    const auto* text = std::get_if<std::string>(&*value);
    validate(text != nullptr && *text == "false",
             "{}: has the attribute _Unsigned, which this program does not follow; write the "
             "values with an unsigned type",
             variable.rows.location);
  }
  const auto scale = number_attribute(file, path, "scale_factor"),
             offset = number_attribute(file, path, "add_offset");
  variable.has_scale = scale || offset;
  variable.scale = scale.value_or(1);
  variable.offset = offset.value_or(0);
  validate(std::isfinite(variable.scale) && std::isfinite(variable.offset),
           "{}: its attributes scale_factor and add_offset must be finite, but are {} and {}",
           variable.rows.location, variable.scale, variable.offset);
  // NaN is no value in any case. The attribute may have another type than the dataset.
  if (!file.has_attribute(path, "_FillValue"))
    if (const auto fill = default_fill(file, variable.rows)) variable.missing.push_back(*fill);
  for (const char* name : {"_FillValue", "missing_value"})
    if (const auto value = number_attribute(file, path, name); value && !std::isnan(*value))
      variable.missing.push_back(as_stored(variable.rows, *value));
  return variable;
}

double as_stored(const io::StoredDataset& rows, double value) {
  if (rows.kind != io::StoredDataset::Kind::real || rows.element_bytes == 8) return value;
  const auto single = static_cast<float>(value);
  if (rows.element_bytes == 4) return single;
  return to_float(from_float<Float16>(single));
}

std::array<std::int64_t, 3> array_extents(const ArrayVariable& input, const std::string& layout) {
  std::array<std::int64_t, 3> extents{1, 1, 1};
  for (std::size_t i = 0; i < layout.size(); ++i)
    extents[letters.find(layout[i])] = input.rows.shape[i + 1];
  return extents;
}

AnswerExtents target_extents(const ShardIndex& file, const SampleForm& form) {
  AnswerExtents extents;
  for (const ArrayVariable& target : file.targets) {
    if (!form.target.answer().is_map) {
      extents.count += elements_of_row(target.rows, max_target_numbers);
      continue;
    }
    const auto [height, width, components] = array_extents(target, form.arrays.target_layout);
    extents = {extents.count + components, height, width};
  }
  return extents;
}

std::string to_text(const AnswerExtents& extents) {
  return extents.is_map()
             ? fmt::format("{} x {} x {}", extents.height, extents.width, extents.count)
             : counted(extents.count, "number", "numbers");
}

DType array_type(const ShardIndex& file, const ArrayForm& form) {
  const DType type = type_of(file.inputs.front());
  const bool equal =
      std::all_of(file.inputs.begin(), file.inputs.end(),
                  [&](const ArrayVariable& input) { return type_of(input) == type; });
  // Missing numbers are replaced where they are float32.
  const bool is_filled = form.fill && type == DType::float16;
  return equal && !is_filled ? type : DType::float32;
}

IndexedShard index_array_file(const io::Hdf5Reader& reader, const SampleForm& sample) {
  const ArrayForm& form = sample.arrays;
  IndexedShard file;
  file.index.path = reader.path();
  file.index.stamp = reader.stamp();
  ShardDescription& header = file.header;
  for (const std::string& path : form.input) {
    file.index.inputs.push_back(variable_of(reader.index(), false, path, form));
    const ArrayVariable &input = file.index.inputs.back(), &first = file.index.inputs.front();
    const auto [height, width, channels] = array_extents(input, form.layout);
    if (&input == &first) {
      header.samples = input.rows.shape[0];
      header.height = height;
      header.width = width;
    }
    header.channels += channels;
    validate(
        input.rows.shape[0] == header.samples && height == header.height && width == header.width,
        "{}: has {} samples of {} x {} (h, w), but {} has {} of {} x {}; inputs are stacked "
        "as channels, so these must be equal",
        input.rows.location, input.rows.shape[0], height, width, first.rows.location,
        header.samples, header.height, header.width);
  }
  header.kind = DatasetKind::images;
  header.pixel_type =
      form.transform == ArrayForm::Transform::none ? array_type(file.index, form) : DType::float32;
  header.file_bytes = reader.index().file_bytes();
  header.preparation = preparation_of(table_lines(form, sample.target));
  if (sample.target_use == TargetUse::none) return file;
  if (sample.target.answer().is_map)
    file.index.targets = find_maps(reader.index(), sample, file.index.inputs.front());
  else if (sample.target.answer().has_float_targets)
    file.index.targets = find_vectors(reader.index(), sample, file.index.inputs.front());
  else
    file.index.labels = read_classes(reader, form, header.samples, file.index.inputs.front());
  header.target = {sample.target.kind, target_extents(file.index, sample)};
  if (sample.target.answer().has_classes_of_pixels())
    header.target.extents.count = sample.target.classes;
  return file;
}

}  // namespace trireme::data
