#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#define H5_USE_110_API  // newer HDF5 keeps these forms; 1.10 has no others
#include <hdf5.h>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::io::detail {

/// HDF5's own words for the last error, innermost first; clears them.
std::string hdf5_error_text();

/// Passes a result of HDF5 on, or throws E with what was tried and HDF5's words. The lock is held by the caller.
template <class E, class Result, class... Args>
Result hdf5_try(Result result, fmt::format_string<Args...> format, Args&&... args) {
  if (result < 0) throw E(fmt::format(format, std::forward<Args>(args)...) + ": " + hdf5_error_text());
  return result;
}

/// H5T_NATIVE_... of a memory type (not to be closed).
hid_t memory_type(Hdf5Number number);

/// Little-endian type in the file, the same on every machine (not to be closed).
hid_t file_type(Hdf5Number number);

/// An open attribute or dataset of strings, of fixed or variable length, and its parts.
struct StringSource {
  hid_t object;
  bool is_attribute;
  hid_t type, space;
  std::string place;
};
std::vector<std::string> read_string_elements(const StringSource& source);

}  // namespace trireme::io::detail
