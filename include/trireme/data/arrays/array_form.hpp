// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trireme/data/targets/target_options.hpp"

namespace trireme::data {

/// Table [data.hdf5]: where the samples are in the HDF5 and netCDF-4 files of other programs.
struct ArrayForm {
  /// What one sample is.
  enum class Samples : std::uint8_t {
    rows,  ///< one index of the first dimension of each dataset
    files  ///< a whole file
  };
  /// A function of each number of an input.
  enum class Transform : std::uint8_t {
    none,
    log1p  ///< log(1 + x)
  };
  std::vector<std::string> input;  ///< paths of datasets, stacked as channels; empty: no table
  /// Path of the dataset of classes (of samples or of pixels), or paths of datasets of numbers: one
  /// behind the other in a vector, or stacked as components of a field. Empty: targets are not
  /// read.
  std::vector<std::string> target;
  /// The dimensions of one sample of an input, each of the letters h, w and c at most once. Those
  /// that are missing have the extent 1.
  std::string layout;
  /// The same of one dataset of a target that is a map: h and w, and c if it has components.
  std::string target_layout = "hw";
  Samples samples = Samples::rows;
  Transform transform = Transform::none;
  /// Takes the place of inputs that are missing, infinite or NaN, before `transform`; none: they
  /// are errors.
  std::optional<double> fill = {};

  bool is_used() const { return !input.empty(); }
};

/// Returns how a deck reads samples from files of other programs, as lines "key = value", which
/// shards made from these files keep.
std::vector<std::string> table_lines(const ArrayForm& arrays, const TargetOptions& target);

/// Returns whether a name is one of an HDF5 or netCDF-4 file that is taken from a folder: *.h5,
/// *.hdf5, *.he5, *.nc or *.nc4, and hidden files are not.
bool is_array_file_name(const std::filesystem::path& path);

}  // namespace trireme::data
