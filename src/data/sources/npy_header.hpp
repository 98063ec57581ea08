// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/io/file.hpp"

namespace trireme::data {

/// The header of a NumPy file (.npy, format 1 to 3).
/// Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
struct NpyHeader {
  std::string type;  ///< `descr` without quotes, as "<u2"; of a structured type the whole literal
  std::vector<std::int64_t> shape;
  bool is_fortran_order = false;  ///< the first dimension is the innermost
  std::int64_t begin = 0;         ///< position of the first element

  std::int64_t elements() const;
  /// Returns the bytes of an element, if it is an integer of the byte order of this machine, else
  /// 0. Sets `is_signed`.
  std::int64_t integer_bytes(bool& is_signed) const;
};

/// Reads the header of a file. The product of its extents is less than 2^63. Throws InputError.
NpyHeader read_npy_header(const io::File& file);

/// Throws InputError if as many elements of `bytes` bytes do not end with the file.
void check_npy_size(const io::File& file, const NpyHeader& header, std::int64_t bytes);

}  // namespace trireme::data
