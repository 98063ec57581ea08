#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#define H5_USE_110_API  // newer HDF5 keeps these forms; 1.10 has no others
#include <hdf5.h>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::io::detail {

/// HDF5's own words for the last error, innermost first; clears them.
std::string hdf5_error_text();

/// Passes a result of HDF5 on, or throws E with what was tried and HDF5's words. The lock is held
/// by the caller.
template <class E, class Result, class... Args>
Result hdf5_try(Result result, fmt::format_string<Args...> format, Args&&... args) {
  if (result < 0)
    throw E(fmt::format(format, std::forward<Args>(args)...) + ": " + hdf5_error_text());
  return result;
}

/// H5T_NATIVE_... of a memory type (not to be closed).
hid_t memory_type(Hdf5Number number);

/// Little-endian type in the file, the same on every machine (not to be closed).
hid_t file_type(Hdf5Number number);

/// What a transfer touches, in the file and in memory, where its elements stand one behind the
/// other.
struct Selection {
  Hdf5Handle in_file, in_memory;
};

/// The union of boxes of an open dataset. The lock is held by the caller.
template <class E>
Selection select(hid_t dataset, std::span<const Hdf5Box> boxes, const std::string& location) {
  Selection selection{Hdf5Handle(hdf5_try<E>(H5Dget_space(dataset), "{}: no extents", location)),
                      {}};
  const bool scalar = H5Sget_simple_extent_type(selection.in_file.id()) == H5S_SCALAR;
  if (!scalar || boxes.empty())
    hdf5_try<E>(H5Sselect_none(selection.in_file.id()), "{}: selection", location);
  hsize_t elements = 0;
  for (const Hdf5Box& box : boxes) {
    elements += static_cast<hsize_t>(box.elements());
    if (scalar || box.elements() == 0) continue;
    const std::vector<hsize_t> start(box.start.begin(), box.start.end()),
        count(box.count.begin(), box.count.end());
    hdf5_try<E>(H5Sselect_hyperslab(selection.in_file.id(), H5S_SELECT_OR, start.data(), nullptr,
                                    count.data(), nullptr),
                "{}: selection", location);
  }
  TRIREME_EXPECT(H5Sget_select_npoints(selection.in_file.id()) ==
                 static_cast<hssize_t>(elements));  // else boxes overlap
  // Of one box the extents: HDF5 goes over chunks fast only where both selections have one shape.
  std::vector<hsize_t> extents{elements};
  if (boxes.size() == 1 && !scalar) extents.assign(boxes[0].count.begin(), boxes[0].count.end());
  selection.in_memory = Hdf5Handle(
      hdf5_try<E>(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                  "{}: extents", location));
  return selection;
}

/// An open attribute or dataset of strings, of fixed or variable length, and its parts.
struct StringSource {
  hid_t object;
  bool is_attribute;
  hid_t type, space;
  std::string location;
};
std::vector<std::string> read_string_elements(const StringSource& source);

}  // namespace trireme::io::detail
