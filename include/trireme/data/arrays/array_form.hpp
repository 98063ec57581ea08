// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace trireme::data {

/// Table [data.hdf5]: where the samples are in the HDF5 and netCDF-4 files of other programs.
struct ArrayForm {
  /// What one sample is.
  enum class Samples : std::uint8_t {
    rows,  ///< one index of the first dimension of each dataset
    files  ///< a whole file
  };
  std::vector<std::string> input;   ///< paths of datasets, stacked as channels; empty: no table
  std::vector<std::string> target;  ///< path of the dataset of classes, or paths of values
  /// The dimensions of one sample of an input, each of the letters h, w and c at most once. Those
  /// that are missing have the extent 1.
  std::string layout;
  Samples samples = Samples::rows;

  bool is_used() const { return !input.empty(); }
};

}  // namespace trireme::data
