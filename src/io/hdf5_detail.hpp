#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#define H5_USE_110_API  // HDF5 1.10 has only these function forms; newer versions keep them
#include <hdf5.h>

#include "trireme/base/check.hpp"
#include "trireme/io/hdf5.hpp"

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

/// The selected elements of a transfer, in the file and in memory. In memory they are contiguous.
struct Selection {
  Hdf5Handle in_file, in_memory;
};

/// Selects the union of boxes of an open dataset. The caller holds Hdf5Lock.
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
                 static_cast<hssize_t>(elements));  // otherwise boxes overlap
  // HDF5 reads chunks quickly only if both selections have the same shape, so one box keeps its
  // extents in memory.
  std::vector<hsize_t> extents{elements};
  if (boxes.size() == 1 && !scalar) extents.assign(boxes[0].count.begin(), boxes[0].count.end());
  selection.in_memory = Hdf5Handle(
      hdf5_try<E>(H5Screate_simple(static_cast<int>(extents.size()), extents.data(), nullptr),
                  "{}: extents", location));
  return selection;
}

}  // namespace trireme::io::detail
