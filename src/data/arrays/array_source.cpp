// SPDX-License-Identifier: Apache-2.0
//
// Samples of files of other programs: reads a row of each input, and stacks them as channels in the
// order [h, w, c].
//
// An input whose rows have the type and the order of the sample is read into its place. All others
// are read into memory of the thread and copied element by element; packed ones are float64 there,
// become stored * scale + offset, and are rounded once, to float32. Targets that are vectors are
// read likewise, and normalized. All these values must be finite; every read checks it. Targets
// that are maps are put together like inputs, and normalized or checked to be classes; missing ones
// become NaN or -1 and do not count.
#include "array_source.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <list>
#include <optional>
#include <utility>
#include <vector>

#include "array_index.hpp"
#include "data/finite_values.hpp"
#include "data/shards/shard_checksums.hpp"
#include "data/shards/stored_rows.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

double unchanged(double number) { return number; }
double log1p_of(double number) { return std::log1p(number); }

/// One dataset of an image: of the input, or of a target that is a map.
struct ArrayInput {
  StoredRows rows;
  std::string location;
  double scale = 1, offset = 0;
  std::vector<double> missing;
  /// The numbers are float64 in memory, and become change(stored * scale + offset). Those that are
  /// missing are NaN.
  bool is_packed = false;
  double (*change)(double) = unchanged;
  std::optional<double> fill = {};  ///< in place of numbers that are not finite, before `change`
  std::int64_t first_channel = 0, channels = 1;
  /// The dimensions of a row, the innermost last, and the elements of the sample between neighbors.
  std::array<std::int64_t, 3> extents{1, 1, 1}, steps{0, 0, 0};
  bool is_in_place = false;  ///< a row is the whole sample, as it is
};

/// One dataset of targets that are vectors.
struct ArrayTarget {
  StoredRows rows;  ///< as float64
  std::string location;
  double scale = 1, offset = 0;
  std::vector<double> missing;
  bool is_class_set = false;  ///< 0 and 1 are allowed
  /// Of each value of a row, in units of the data.
  std::vector<double> mean, std;
};

/// Copies a row into a sample. `value(i)`: element i of the row.
template <class To, class Value>
void scatter(const ArrayInput& input, To* sample, Value&& value) {
  To* const to = sample + input.first_channel;
  std::int64_t i = 0;
  for (std::int64_t a = 0; a < input.extents[0]; ++a)
    for (std::int64_t b = 0; b < input.extents[1]; ++b) {
      To* const line = to + a * input.steps[0] + b * input.steps[1];
      for (std::int64_t c = 0; c < input.extents[2]; ++c) line[c * input.steps[2]] = value(i++);
    }
}

template <class Element>
void scatter_bits(const ArrayInput& input, const std::byte* row, std::byte* sample) {
  const auto* from = reinterpret_cast<const Element*>(row);
  scatter(input, reinterpret_cast<Element*>(sample), [&](std::int64_t i) { return from[i]; });
}

void scatter_packed(const ArrayInput& input, const std::byte* row, std::byte* sample) {
  const auto* from = reinterpret_cast<const double*>(row);
  scatter(input, reinterpret_cast<float*>(sample), [&](std::int64_t i) {
    double number = from[i] * input.scale + input.offset;
    for (const double missing : input.missing)
      if (from[i] == missing) number = std::numeric_limits<double>::quiet_NaN();
    if (input.fill && !std::isfinite(number)) number = *input.fill;
    return static_cast<float>(input.change(number));
  });
}

class ArraySource : public SampleSource {
 public:
  ArraySource(ShardIndex file, const SampleForm& sample, DType type,
              const ShardResources& resources, ArrayChecksums checksums)
      : path_(std::move(file.path)),
        size_(file.inputs.front().rows.shape[0]),
        labels_(std::move(file.labels)),
        transform_(sample.arrays.transform),
        fill_(sample.arrays.fill),
        is_exact_(sample.target_use == TargetUse::exact),
        info_{type, {}, {}} {
    const ArrayForm& form = sample.arrays;
    if (checksums == ArrayChecksums::stored)
      for (const std::vector<ArrayVariable>* variables : {&file.inputs, &file.targets})
        for (const ArrayVariable& variable : *variables)
          stored_.emplace_back(path_, file.stamp, variable.rows, resources.files, resources.cache);
    if (sample.target.answer().is_map)
      add_maps(file, sample, resources);
    else
      add_vectors(file, sample, resources);
    std::optional<io::Hdf5Number> memory;
    if (type == DType::float32) memory = io::Hdf5Number::float32;
    for (const ArrayVariable& input : file.inputs)
      TRIREME_EXPECT(!input.is_packed() || type == DType::float32);
    info_.input = add_images(file, file.inputs, form.layout, memory, resources, inputs_);
  }

  const SampleInfo& info() const override { return info_; }
  std::int64_t size() const override { return size_; }
  std::int64_t sample_bytes(std::int64_t) const override { return info_.input_bytes(); }

  void read(std::int64_t index, std::byte* input, void* labels) const override {
    if (input != nullptr) read_input(index, input);
    if (labels == nullptr) return;
    if (targets_.empty() && maps_.empty())
      *static_cast<std::int32_t*>(labels) =
          labels_.empty() ? -1 : labels_[static_cast<std::size_t>(index)];
    else if (info_.label_type == DType::int32)
      classify(index, read_map(index), static_cast<std::int32_t*>(labels));
    else if (info_.label_type == DType::float64)
      read_numbers(index, static_cast<double*>(labels));
    else
      read_numbers(index, static_cast<float*>(labels));
  }

  void read_ahead(std::int64_t first, std::int64_t count) const override {
    for (const auto& input : inputs_) input->rows.read_ahead(first, count);
    for (const auto& target : targets_) target->rows.read_ahead(first, count);
    for (const auto& map : maps_) map->rows.read_ahead(first, count);
  }

  std::string verify(const ShardChecksums* checksums, BlockRange blocks) const override {
    std::vector<std::byte> piece;
    std::vector<double> values(static_cast<std::size_t>(info_.labels.elements()));
    const auto hash_rows = [&](std::int64_t begin, std::int64_t count, io::Xxh3& hash) {
      for (const StoredRows& rows : stored_) {
        const std::int64_t step =
            std::max<std::int64_t>(1, verified_piece_bytes / rows.row_bytes());
        for (std::int64_t first = begin; first < begin + count; first += step) {
          const std::int64_t part = std::min(step, begin + count - first);
          piece.resize(static_cast<std::size_t>(part * rows.row_bytes()));
          rows.read(first, part, piece.data());
          hash.update(piece.data(), piece.size());
        }
      }
    };
    std::string difference =
        compare_blocks(checksums, blocks, size(), {"/images and /targets", "samples"}, hash_rows);
    // A value in a damaged block is damaged, too. Those of some blocks are checked when they are
    // used.
    if (!difference.empty() || blocks.end < BlockRange().end) return difference;
    piece.resize(static_cast<std::size_t>(info_.input_bytes()));
    // One after the other: both may be in chunks, which a small cache keeps for one of them.
    for (std::int64_t index = 0; index < size(); ++index) read_input(index, piece.data());
    if (!targets_.empty() || !maps_.empty())
      for (std::int64_t index = 0; index < size(); ++index) read(index, nullptr, values.data());
    return "";
  }

 private:
  /// Adds datasets that are stacked as channels, and returns the extents [h, w, c] of all together.
  /// `memory`: type of the numbers of those that are not packed; none: as they are stored.
  Shape add_images(const ShardIndex& file, const std::vector<ArrayVariable>& variables,
                   const std::string& layout, std::optional<io::Hdf5Number> memory,
                   const ShardResources& resources,
                   std::vector<std::unique_ptr<ArrayInput>>& images) {
    const auto [height, width, unused] = array_extents(variables.front(), layout);
    std::int64_t channels = 0;
    for (const ArrayVariable& variable : variables) channels += array_extents(variable, layout)[2];
    const std::array<std::int64_t, 3> steps{width * channels, channels, 1};
    std::int64_t first_channel = 0;
    for (const ArrayVariable& variable : variables) {
      const bool is_input = &images == &inputs_,
                 is_changed = is_input && transform_ != ArrayForm::Transform::none,
                 is_filled = is_input && fill_ && info_.dtype == DType::float32,
                 is_packed = variable.is_packed() || is_changed || is_filled;
      std::unique_ptr<ArrayInput> input(
          new ArrayInput{{path_, file.stamp, variable.rows, resources.files, resources.cache,
                          is_packed ? io::Hdf5Number::float64 : memory},
                         variable.rows.location,
                         variable.scale,
                         variable.offset,
                         variable.missing,
                         is_packed,
                         is_changed ? log1p_of : unchanged,
                         is_filled ? fill_ : std::nullopt});
      input->first_channel = first_channel;
      first_channel += input->channels = array_extents(variable, layout)[2];
      // Dimensions that the layout lacks come first, with the extent 1.
      const std::size_t lacking = 3 - layout.size();
      std::int64_t dense = 1;
      input->is_in_place = !input->is_packed && variables.size() == 1;
      for (std::size_t i = layout.size(); i-- > 0;) {
        input->extents[lacking + i] = variable.rows.shape[i + 1];
        input->steps[lacking + i] = steps[std::string_view("hwc").find(layout[i])];
        input->is_in_place = input->is_in_place && (input->extents[lacking + i] == 1 ||
                                                    input->steps[lacking + i] == dense);
        dense *= input->extents[lacking + i];
      }
      images.push_back(std::move(input));
    }
    return {height, width, channels};
  }

  DType number_type() const { return is_exact_ ? DType::float64 : DType::float32; }

  void add_maps(ShardIndex& file, const SampleForm& sample, const ShardResources& resources) {
    if (file.targets.empty()) return;
    const Shape extents = add_images(file, file.targets, sample.arrays.target_layout,
                                     io::Hdf5Number::float64, resources, maps_);
    target_ = sample.target;
    // The mark of pixels that do not count is a number of the file, rounded to its type. Packed
    // numbers are compared when they are unpacked.
    for (std::size_t i = 0; target_.ignore && i < maps_.size(); ++i)
      if (!file.targets[i].is_packed())
        maps_[i]->missing.push_back(as_stored(file.targets[i].rows, *target_.ignore));
    if (target_.answer().has_float_targets) {
      info_.labels = extents;
      info_.label_type = number_type();
    } else {
      info_.labels = {extents[0], extents[1]};
    }
  }

  void add_vectors(ShardIndex& file, const SampleForm& sample, const ShardResources& resources) {
    if (file.targets.empty()) return;
    const TargetOptions& options = sample.target;
    info_.labels = {target_extents(file, sample).count};
    info_.label_type = number_type();
    std::size_t first = 0;
    for (ArrayVariable& variable : file.targets) {
      std::unique_ptr<ArrayTarget> target(
          new ArrayTarget{{path_, file.stamp, variable.rows, resources.files, resources.cache,
                           io::Hdf5Number::float64},
                          variable.rows.location,
                          variable.scale,
                          variable.offset,
                          variable.missing,
                          options.kind == AnswerKind::classes,
                          {},
                          {}});
      const std::size_t values =
          static_cast<std::size_t>(target->rows.row_bytes()) / sizeof(double);
      for (std::size_t i = 0; i < values; ++i) {
        target->mean.push_back(options.mean_of(first + i));
        target->std.push_back(options.std_of(first + i));
      }
      first += values;
      targets_.push_back(std::move(target));
    }
  }

  /// Reads the values or the field of a sample.
  template <class To>
  void read_numbers(std::int64_t index, To* numbers) const {
    if (maps_.empty())
      read_values(index, numbers);
    else
      normalize(index, read_map(index), numbers);
  }

  /// Reads the values of a sample, unpacked, and normalized unless they are exact.
  template <class To>
  void read_values(std::int64_t index, To* values) const {
    thread_local std::vector<double> row;
    for (const auto& target : targets_) {
      row.resize(target->mean.size());
      target->rows.read(index, 1, reinterpret_cast<std::byte*>(row.data()));
      for (std::size_t i = 0; i < row.size(); ++i) {
        const bool is_missing = std::find(target->missing.begin(), target->missing.end(), row[i]) !=
                                target->missing.end();
        const double value = row[i] * target->scale + target->offset;
        const auto normal = static_cast<float>((value - target->mean[i]) / target->std[i]);
        validate(!is_missing && std::isfinite(normal),
                 "{}: sample {} has a target that is missing, infinite or NaN, or too large for "
                 "float32 (number {} of {}); leave such samples out",
                 target->location, index, i, row.size());
        validate(
            !target->is_class_set || value == 0 || value == 1,
            "{}: sample {} has {} for a class (number {} of {}); target.kind = \"classes\" takes "
            "1 for a class that is there, and 0",
            target->location, index, value, i, row.size());
        *values++ = is_exact_ ? static_cast<To>(value) : normal;
      }
    }
  }

  /// Returns whether an unpacked number is target.ignore, up to the rounding of its scale.
  bool is_ignored(const ArrayInput& map, double number) const {
    if (!target_.ignore) return false;
    const bool is_scaled = map.scale != 1 || map.offset != 0;
    return is_scaled ? static_cast<float>(number) == static_cast<float>(*target_.ignore)
                     : number == *target_.ignore;
  }

  /// Reads the classes or numbers of all pixels. Those that are missing become NaN. The result is
  /// valid until the next call of this thread.
  const std::vector<double>& read_map(std::int64_t index) const {
    thread_local std::vector<double> row, map;
    map.resize(static_cast<std::size_t>(info_.labels.elements()));
    for (const auto& part : maps_) {
      row.resize(static_cast<std::size_t>(part->rows.row_bytes()) / sizeof(double));
      part->rows.read(index, 1, reinterpret_cast<std::byte*>(row.data()));
      scatter(*part, map.data(), [&](std::int64_t i) {
        const double stored = row[static_cast<std::size_t>(i)];
        const double number = stored * part->scale + part->offset;
        const bool is_missing =
            std::find(part->missing.begin(), part->missing.end(), stored) != part->missing.end() ||
            (part->is_packed && is_ignored(*part, number));
        return is_missing ? std::numeric_limits<double>::quiet_NaN() : number;
      });
    }
    return map;
  }

  template <class To>
  void normalize(std::int64_t index, const std::vector<double>& map, To* numbers) const {
    const auto components = static_cast<std::size_t>(info_.labels[2]);
    for (std::size_t i = 0; i < map.size(); ++i) {
      const std::size_t component = i % components;
      numbers[i] = std::numeric_limits<To>::quiet_NaN();
      if (!std::isfinite(map[i])) continue;
      const auto normal =
          static_cast<float>((map[i] - target_.mean_of(component)) / target_.std_of(component));
      validate(std::isfinite(normal),
               "{}: sample {} has {} at {}, too large for float32{}; {}store NaN where there is no "
               "value",
               dataset_of(maps_, static_cast<std::int64_t>(component)).location, index, map[i],
               place_in_map(i / components), target_.std.empty() ? "" : " after target.normalize",
               target_.std.empty() ? "give target.normalize, or " : "");
      numbers[i] = is_exact_ ? static_cast<To>(map[i]) : normal;
    }
  }

  /// Returns the place of a pixel, as in "(h 3, w 0)".
  std::string place_in_map(std::size_t pixel) const {
    const auto width = static_cast<std::size_t>(info_.labels[1]);
    return fmt::format("(h {}, w {})", pixel / width, pixel % width);
  }

  void classify(std::int64_t index, const std::vector<double>& map, std::int32_t* classes) const {
    for (std::size_t i = 0; i < map.size(); ++i) {
      classes[i] = -1;
      if (!std::isfinite(map[i])) continue;
      // Scaled numbers may be off by the rounding of their scale.
      const double number = std::round(map[i]);
      validate(number >= 0 && number < static_cast<double>(target_.classes) &&
                   std::abs(map[i] - number) < 1e-6,
               "{}: sample {} has {} at {}, which is no class; classes are 0 to {} "
               "(target.classes), and "
               "target.ignore names a value without a class",
               maps_.front()->location, index, map[i], place_in_map(i), target_.classes - 1);
      classes[i] = static_cast<std::int32_t>(number);
    }
  }

  void read_input(std::int64_t index, std::byte* sample) const {
    // Readers are threads of the loader, which keep the memory.
    thread_local std::vector<std::byte> row;
    for (const auto& input : inputs_) {
      if (input->is_in_place) {
        input->rows.read(index, 1, sample);
        continue;
      }
      row.resize(static_cast<std::size_t>(input->rows.row_bytes()));
      input->rows.read(index, 1, row.data());
      if (input->is_packed)
        scatter_packed(*input, row.data(), sample);
      else if (size_of(info_.dtype) == 1)
        scatter_bits<std::uint8_t>(*input, row.data(), sample);
      else if (size_of(info_.dtype) == 2)
        scatter_bits<std::uint16_t>(*input, row.data(), sample);
      else
        scatter_bits<std::uint32_t>(*input, row.data(), sample);
    }
    const std::int64_t at = find_not_finite(info_.dtype, sample, info_.input.elements());
    if (at < 0) return;
    const bool takes_logarithms = transform_ == ArrayForm::Transform::log1p;
    throw_at(index, at,
             takes_logarithms
                 ? "a value that is missing, infinite, NaN, or -1 or less"
                 : "a value that is missing, infinite or NaN, or too large for float32",
             takes_logarithms ? "data.hdf5.transform = \"log1p\" needs numbers above -1"
             : fill_ ? "data.hdf5.fill replaces no number of this size"
                     : "replace such values, as data.hdf5.fill does, or leave such samples out");
  }

  /// Returns the dataset of a channel, of those that are stacked.
  static const ArrayInput& dataset_of(const std::vector<std::unique_ptr<ArrayInput>>& images,
                                      std::int64_t channel) {
    return **std::find_if(images.begin(), images.end(), [&](const auto& one) {
      return channel < one->first_channel + one->channels;
    });
  }

  /// Throws InputError about a number of a sample.
  [[noreturn]] void throw_at(std::int64_t index, std::int64_t at, const char* what,
                             const char* advice) const {
    const std::int64_t channels = info_.input[2], channel = at % channels, pixel = at / channels,
                       width = info_.input[1];
    const ArrayInput& input = dataset_of(inputs_, channel);
    throw InputError(fmt::format("{}: sample {} has {} (h {}, w {}, c {}); {}", input.location,
                                 index, what, pixel / width, pixel % width,
                                 channel - input.first_channel, advice));
  }

  std::string path_;
  std::int64_t size_;
  std::vector<std::int32_t> labels_;  ///< empty if targets are vectors or maps, or not read
  std::vector<std::unique_ptr<ArrayTarget>> targets_;  ///< of vectors
  TargetOptions target_;                               ///< of maps
  ArrayForm::Transform transform_;
  std::optional<double> fill_;  ///< of inputs
  bool is_exact_;               ///< targets are float64
  SampleInfo info_;
  std::vector<std::unique_ptr<ArrayInput>> inputs_, maps_;
  std::list<StoredRows> stored_;  ///< of inputs, then of targets, if checksums are of their bytes
};

}  // namespace

std::unique_ptr<SampleSource> open_arrays(ShardIndex file, const SampleForm& form, DType type,
                                          const ShardResources& resources,
                                          ArrayChecksums checksums) {
  return std::make_unique<ArraySource>(std::move(file), form, type, resources, checksums);
}

}  // namespace trireme::data
