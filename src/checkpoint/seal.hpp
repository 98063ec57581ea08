#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trireme::checkpoint {

// The seal is stored in the user block, little-endian:
//
//   bytes 0 to 7    magic
//   bytes 8 to 15   bytes of the file after the user block (uint64)
//   8 bytes each    XXH3 of each 4 MiB block of that rest (uint64)
//   8 bytes         XXH3 of the whole user block, computed with this field as 0 (uint64)
//   the rest        zeros
constexpr std::string_view seal_magic = "TRIREME1";
constexpr std::int64_t seal_block_bytes = std::int64_t{4} << 20;

/// Returns the number of 4 MiB blocks in `rest_bytes`.
std::int64_t seal_blocks(std::int64_t rest_bytes);

/// Returns the size of the smallest user block that holds the seal of `rest_bytes`: a power of two,
/// at least 512, as HDF5 requires.
std::int64_t user_block_bytes(std::int64_t rest_bytes);

/// Returns the user block of `bytes` bytes with its seal. Throws Failure if the seal does not fit.
std::string make_user_block(std::int64_t bytes, std::int64_t rest_bytes,
                            std::span<const std::uint64_t> block_hashes);

/// Throws InputError if `path` is a folder; the message names the files to use instead.
void reject_folder(const std::string& path);

/// Returns whether the file starts with the magic of the seal. Throws InputError if it cannot be
/// opened.
bool has_seal(const std::string& path);

}  // namespace trireme::checkpoint
