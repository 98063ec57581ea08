#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "read_back.hpp"
#include "trireme/checkpoint/checkpoint.hpp"

namespace trireme::checkpoint {

/// Elements of a rank's rows of a piece.
std::int64_t elements_of(const TensorSlice& slice);

/// Whether this rank's rows are whole rows of the tensor, and so one run of bytes in the file.
bool holds_whole_rows(const TensorSlice& slice);

/// Elements that the transposition of a piece's rows in rounds takes, of the piece that takes most;
/// at least one.
std::int64_t staging_elements(std::span<const TensorSlice> slices);

/// Writes this rank's rows of the pieces to where their tensors lie in a file that has its size:
/// whole rows with one write, other rows with one a section. Those for which `left_out` says so are
/// not written (empty: none). `staging` has staging_elements(). Flushes what this rank's node has
/// written of the file. Calls neither HDF5 nor MPI. Throws Failure.
void write_values(const std::string& path, std::span<const TensorSlice> slices,
                  std::span<const FileExtent> tensors, std::span<const char> skipped,
                  float* staging);

}  // namespace trireme::checkpoint
