// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "read_back.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Returns the number of elements of a slice.
std::int64_t elements_of(const TensorSlice& slice);

/// Returns whether a slice consists of whole rows of the tensor, which are contiguous in the file.
bool holds_whole_rows(const TensorSlice& slice);

/// Returns the elements of the buffer that write_values() needs to reorder channels-last rows: the
/// maximum over the slices, at least 1.
std::int64_t staging_elements(std::span<const TensorSlice> slices);

/// Writes this rank's slices at the offsets `tensors` of a file that has its final size, and
/// flushes it. Skips slice i if `skipped[i]` is not 0 (empty: skips none). `staging` has
/// staging_elements(). Makes no HDF5 and no MPI call, so a thread may call it. Throws Failure.
void write_values(const std::string& path, std::span<const TensorSlice> slices,
                  std::span<const FileExtent> tensors, std::span<const char> skipped,
                  float* staging);

}  // namespace trireme::checkpoint
