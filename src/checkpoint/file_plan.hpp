// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "read_back.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5.hpp"

namespace trireme::checkpoint {

// The steps that write() and BackgroundWrite share, so that both produce the same bytes.

/// The content and the maximum size of a file before it is written; equal on all ranks.
struct FilePlan {
  Info info;  ///< metadata of world rank 0
  /// Digests of the whole tensors, in the order of the slices.
  std::vector<std::uint64_t> digests;
  /// Upper bound of the file size, and the size of the user block that holds the seal; bytes.
  std::int64_t max_bytes = 0, user_block_bytes = 0;
};

/// Checks the slices of all ranks and plans the file. Leaves the digests 0. Collective. Throws
/// Failure if the ranks name different tensors or do not hold every element exactly once.
FilePlan plan_file(const comm::Communicator& world, const std::string& path,
                   std::span<const TensorSlice> slices, const Info& info);

/// Returns each slice's contribution to the digest of its tensor. Waits for the slices' streams;
/// not collective.
std::vector<std::uint64_t> digests_of(std::span<const TensorSlice> slices);

/// Rank 0 creates the temporary file and proves that the disk has room for it. `staged` stays empty
/// on other ranks. Collective. Throws Failure if the folder or the room is missing.
void create_staged_file(const comm::Communicator& world, const std::string& path,
                        const FilePlan& plan, std::optional<io::StagedFile>& staged);

/// Offsets of all tensors in the closed file. The file has its final size, but is not flushed yet.
struct FileOffsets {
  std::vector<FileExtent> tensors;
  std::int64_t file_bytes = 0;
};
/// Creates the HDF5 file with its metadata and all datasets, but without values, and closes it.
/// Called by one rank, without MPI: the layout would depend on the ranks that create it. Throws
/// Failure.
FileOffsets create_layout(const std::string& temporary, std::span<const TensorSlice> slices,
                          const FilePlan& plan);
/// Broadcasts rank 0's offsets to every rank. Collective.
void broadcast_offsets(const comm::Communicator& world, FileOffsets& offsets, std::size_t tensors);

/// Compares the digests that were read back with those of memory. Throws Failure if a tensor
/// differs.
void check_read_back(const ReadBack& found, std::span<const TensorSlice> slices,
                     const FilePlan& plan, const std::string& temporary);

/// Returns the combined digest of a file that is being written.
std::uint64_t combined_digest(std::span<const TensorSlice> slices, const FilePlan& plan);

}  // namespace trireme::checkpoint
