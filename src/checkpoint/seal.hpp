#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

// The seal, in the file's user block, little-endian: magic (8 bytes), length of the rest of the
// file (uint64), XXH3 of each 4 MiB of that rest (uint64 each), XXH3 of the whole user block with
// this field as 0 (uint64); zeros up to the block's end.
constexpr std::string_view seal_magic = "TRIREME1";
constexpr std::int64_t seal_block_bytes = std::int64_t{4} << 20;

/// Blocks that a rest of so many bytes has.
std::int64_t seal_blocks(std::int64_t rest_bytes);

/// The smallest user block (a power of two >= 512, as HDF5 wants it) that holds the seal of a rest
/// of so many bytes.
std::int64_t user_block_bytes(std::int64_t rest_bytes);

/// The whole user block.
std::string make_user_block(std::int64_t bytes, std::int64_t rest_bytes,
                            std::span<const std::uint64_t> block_hashes);

/// Throws InputError where a folder is given, which says what of it is meant.
void reject_folder(const std::string& path);

/// Whether the file begins with the seal's magic.
bool has_seal(const std::string& path);

}  // namespace trireme::checkpoint
