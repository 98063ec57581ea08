// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "hdf5_report.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io {

/// Compares a dataset with the size of the file. Throws InputError.
StoredDataset stored_dataset(const detail::ReportedDataset& reported, const std::string& location,
                             std::int64_t file_bytes);

}  // namespace trireme::io
