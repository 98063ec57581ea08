// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "trireme/data/sample_source.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5/hdf5_values.hpp"

namespace trireme::data {

/// Bytes that are read at once while a shard is verified.
inline constexpr std::int64_t verified_piece_bytes = std::int64_t{4} << 20;

/// Returns the checksums of a shard of `rows` images or tokens, stored in `samples`; none if it has
/// no /checksums. Throws InputError if their number does not fit.
std::optional<ShardChecksums> read_checksums(const io::Hdf5Reader& reader,
                                             const io::StoredDataset& samples, std::int64_t rows);

/// Words for the rows of a shard in messages.
struct RowWords {
  const char* where;  ///< the HDF5 datasets: "/tokens"
  const char* unit;   ///< "tokens"
};

/// Calls `hash_rows(first, count, hash)` for each of some blocks of the `rows` rows; it reads these
/// rows and adds them to the hash. Returns "" or a description of the first block whose hash is not
/// the stored one. Without `checksums` all rows are one block, which is compared with nothing.
std::string compare_blocks(
    const ShardChecksums* checksums, BlockRange blocks, std::int64_t rows, const RowWords& words,
    const std::function<void(std::int64_t first, std::int64_t count, io::Xxh3& hash)>& hash_rows);

}  // namespace trireme::data
