#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "read_back.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5.hpp"

namespace trireme::checkpoint {

// What the two ways of writing a checkpoint share, so that both give the same bytes.

/// What the file will hold, the same on all ranks.
struct FilePlan {
  Info info;                           ///< world rank 0's
  std::vector<std::uint64_t> digests;  ///< of the whole tensors, in the order of the pieces
  std::int64_t max_bytes = 0, user_block_bytes = 0;
};

/// Checks that the ranks name the same tensors and hold every element exactly once; digests are
/// left 0. Collective.
FilePlan plan_file(const comm::Communicator& world, const std::string& path,
                   std::span<const TensorSlice> slices, const Info& info);

/// Each piece's part of its tensor's digest; nothing collective.
std::vector<std::uint64_t> digests_of(std::span<const TensorSlice> slices);

/// Rank 0 makes the place for the file, if there is room (`staged` is empty elsewhere). Collective.
/// Throws Failure that says what is missing.
void create_staged_file(const comm::Communicator& world, const std::string& path,
                        const FilePlan& plan, std::optional<io::StagedFile>& staged);

/// The open file with everything in it but the tensors' values.
struct FileSkeleton {
  std::optional<io::Hdf5File> file;
  std::vector<io::Hdf5Dataset> datasets;  ///< gone before the file is closed
};
/// By one rank, without MPI; or, where `group` has several, by all of it together, which may then
/// write the datasets collectively. Throws Failure.
FileSkeleton create_skeleton(const comm::Communicator& group, const std::string& temporary,
                             std::span<const TensorSlice> slices, const FilePlan& plan);

/// Where everything lies in the closed file, which has its size and is yet to be flushed.
struct FileOffsets {
  std::vector<FileExtent> tensors;
  std::int64_t file_bytes = 0;
};
/// Closes the file. Throws Failure.
FileOffsets close_skeleton(FileSkeleton& skeleton, const std::string& temporary);
/// Rank 0's, on every rank. Collective.
void broadcast_offsets(const comm::Communicator& world, FileOffsets& offsets, std::size_t tensors);

/// Holds what was read back against memory. Throws Failure.
void check_read_back(const ReadBack& found, std::span<const TensorSlice> slices,
                     const FilePlan& plan, const std::string& temporary);

/// Writes the seal, flushes and reads it back. By one rank.
void write_seal(const std::string& temporary, const FilePlan& plan, std::int64_t file_bytes,
                std::span<const std::uint64_t> block_hashes);

/// One digest over all tensors of a file that is being written.
std::uint64_t combined_digest(std::span<const TensorSlice> slices, const FilePlan& plan);

}  // namespace trireme::checkpoint
