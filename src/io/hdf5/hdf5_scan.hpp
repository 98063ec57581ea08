// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace trireme::io::detail {

/// Opens a file with HDF5 and passes every object to `take`, as a part of a report
/// (hdf5_report.hpp). Reads attributes, strings and compact datasets, but no values of contiguous
/// and chunked ones.
///
/// Throws InputError if the file cannot be read, or contains something that no file of this program
/// contains; the message does not name the path. Throws Failure that names the path if the disk
/// fails. May crash: an untrusted file is scanned in another process.
void scan_hdf5(const std::string& path, const std::function<void(const std::string&)>& take);

}  // namespace trireme::io::detail
