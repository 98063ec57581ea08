// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "trireme/comm/communicator.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::checkpoint {

/// The offset and number of a tensor's elements (float32, contiguous) in the file.
struct FileExtent {
  std::int64_t offset = 0, elements = 0;
};

/// Checksums of a file as it was read back: XXH3 of each 4 MiB block after the user block, and the
/// digest of each tensor.
struct ReadBack {
  std::vector<std::uint64_t> block_hashes, digests;
};

/// Bytes of the buffer for reading back: one block and 4 bytes more, since its last element may
/// continue in the next block.
constexpr std::int64_t read_back_bytes = io::seal_block_bytes + 4;

/// Reads this rank's share of the blocks in one pass and returns its contribution to the checksums;
/// entries of other ranks' blocks are 0. `buffer` has read_back_bytes. Makes no MPI call. Throws
/// Failure if the file has another size than on rank 0.
ReadBack read_share(int rank, int size, const std::string& path, std::int64_t user_block,
                    std::int64_t file_bytes, std::span<const FileExtent> tensors,
                    std::span<char> buffer);
/// Sums the contributions of all ranks, on every rank. Collective.
void sum_over_ranks(const comm::Communicator& world, ReadBack& found);

}  // namespace trireme::checkpoint
