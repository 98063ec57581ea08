#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "seal.hpp"
#include "trireme/comm/communicator.hpp"

namespace trireme::checkpoint {

/// Where a tensor's elements (float32, contiguous) lie in the file.
struct FileExtent {
  std::int64_t offset = 0, elements = 0;
};

/// What is really in the file: XXH3 of each 4 MiB behind the user block, and each tensor's digest.
struct ReadBack {
  std::vector<std::uint64_t> block_hashes, digests;
};

/// What reading back goes through: a block, and a few bytes more, since its last element may go on
/// in the next one.
constexpr std::int64_t read_back_bytes = seal_block_bytes + 4;

/// What rank `rank` of `size` adds to it: its share of the file's blocks, read in one pass through
/// `buffer`, of read_back_bytes. Calls no MPI.
ReadBack read_share(int rank, int size, const std::string& path, std::int64_t user_block,
                    std::int64_t file_bytes, std::span<const FileExtent> tensors,
                    std::span<char> buffer);
/// The shares of all ranks together, on every rank. Collective.
void sum_over_ranks(const comm::Communicator& world, ReadBack& found);

}  // namespace trireme::checkpoint
