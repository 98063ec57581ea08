// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trireme/data/arrays/array_description.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::app {

/// Returns the JSON object of `inspect` for an HDF5 file of another program.
nlohmann::ordered_json arrays_json(const std::string& path,
                                   const data::ArrayFileDescription& arrays);

/// Returns the JSON object of `inspect` for a file of predictions, and its text for people. Throws
/// InputError.
nlohmann::ordered_json predictions_json(const io::Hdf5Index& file,
                                        const data::ArrayFileDescription& arrays);
std::string predictions_text(const io::Hdf5Index& file, const data::ArrayFileDescription& arrays);

}  // namespace trireme::app
