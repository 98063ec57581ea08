// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trireme/io/file.hpp"

namespace trireme::io {

// The seal of an HDF5 file shows damage: it has checksums of all bytes. It does not show who wrote
// the file, so a sealed file of another program is as untrusted as one without a seal.
//
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

/// Writes the seal into the user block of a closed file, flushes it, reads it back and compares.
/// `user_block`: its size in bytes. `block_hashes`: XXH3 of each block as it was read from the
/// file. Throws Failure if the seal does not fit in the user block or the disk fails.
void write_seal(const std::string& path, std::int64_t user_block, std::int64_t file_bytes,
                std::span<const std::uint64_t> block_hashes);

/// Reads a closed file back and writes its seal. The file is flushed already. Throws the errors of
/// write_seal().
void seal_file(const std::string& path, std::int64_t user_block);

/// How much check_seal() reads. `head`: only the user block, which shows whether the seal is intact
/// and matches the file size.
enum class SealCheck : std::uint8_t { every_byte, head };

/// Returns whether the file starts with the magic of the seal. Throws InputError if it cannot be
/// opened.
bool has_seal(const std::string& path);
bool has_seal(const File& file);

/// Checks the seal against the file before HDF5 opens it. Returns "" for an intact file, "no seal"
/// for a file without one, else the damage and its byte offset. Called by one rank; every_byte
/// reads the whole file. Throws InputError if `path` cannot be opened.
std::string check_seal(const std::string& path, SealCheck check = SealCheck::every_byte);
std::string check_seal(const File& file, SealCheck check = SealCheck::every_byte);

/// Returns why HDF5 cannot open a file that begins as one of its files, or of ours, does: it is
/// damaged. Returns "" for any other file. Throws InputError if `path` cannot be opened.
std::string damage_of_hdf5(const std::string& path);

/// Returns whether a result of check_seal() is damage.
bool is_damage(const std::string& seal);

/// Combines the result of check_seal(), which is no damage, with that of a check of the values: ""
/// if they agree with their checksums, "no checksums" if there are none, else their damage.
///
/// Returns "" for an intact file. For a file without a seal (another program wrote it) returns "no
/// seal" or "no checksums": attributes, names and values without checksums were not checked. Else
/// returns the damage.
std::string with_seal(const std::string& seal, const std::string& values);

}  // namespace trireme::io
