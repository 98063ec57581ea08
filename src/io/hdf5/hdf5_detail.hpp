// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#define H5_USE_110_API  // HDF5 1.10 has only these function forms; newer versions keep them
#include <hdf5.h>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5/hdf5.hpp"

namespace trireme::io::detail {

/// Returns HDF5's description of the last error, innermost first, and clears the error.
std::string hdf5_error_text();

/// Returns the result of an HDF5 call, or throws E if it is negative. The message has the attempted
/// operation and HDF5's description. The caller holds Hdf5Lock.
template <class E, class Result, class... Args>
Result hdf5_try(Result result, fmt::format_string<Args...> format, Args&&... args) {
  if (result < 0)
    throw E(fmt::format(format, std::forward<Args>(args)...) + ": " + hdf5_error_text());
  return result;
}

/// Returns H5T_NATIVE_... for a memory type. Do not close it.
hid_t memory_type(Hdf5Number number);

/// Returns the little-endian file type, equal on all machines. Do not close it.
hid_t file_type(Hdf5Number number);

}  // namespace trireme::io::detail
