// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace trireme::data {

/// Returns the HDF5 and netCDF-4 files that a folder holds (*.h5, *.hdf5, *.he5, *.nc, *.nc4), that
/// a pattern with *, ? and [...] matches, or the one file, in the order of their names. Throws
/// InputError if there are none.
std::vector<std::string> array_paths(const std::string& place);

/// Returns whether array_paths() of a place has this file, or would have it if the file existed.
bool takes_array_file(const std::string& place, const std::filesystem::path& path);

}  // namespace trireme::data
