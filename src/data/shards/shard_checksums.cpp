// SPDX-License-Identifier: Apache-2.0
//
// Compares the rows of a shard with its /checksums, block by block. The kinds of shards implement
// SampleSource::verify() with it.
#include "shard_checksums.hpp"

#include <algorithm>
#include <vector>

#include "stored_list.hpp"
#include "trireme/base/check.hpp"

namespace trireme::data {
namespace {

/// Returns the samples (or tokens) per checksum, from the attribute of /checksums or of the file.
std::int64_t checksum_block(const io::Hdf5Index& file) {
  const std::string owner = file.has_attribute("checksums", "block") ? "checksums" : "/";
  const std::int64_t block = file.attribute_int(owner, "block");
  validate(block >= 1,
           "{}: attribute block of /checksums is {}; it counts the samples of a checksum",
           file.path(), block);
  return block;
}

}  // namespace

std::optional<ShardChecksums> read_checksums(const io::Hdf5Reader& reader,
                                             const io::StoredDataset& samples, std::int64_t rows) {
  if (!reader.index().has("checksums")) return std::nullopt;
  const io::StoredDataset& stored = reader.index().dataset("checksums");
  validate(stored.kind == io::StoredDataset::Kind::integer && stored.element_bytes == 8 &&
               stored.shape.size() == 1,
           "{}: checksums are uint64 [blocks]", stored.location);
  ShardChecksums checksums;
  checksums.block = std::min(checksum_block(reader.index()), std::max<std::int64_t>(rows, 1));
  const std::int64_t expected = (rows + checksums.block - 1) / checksums.block;
  validate(stored.shape[0] == expected, "{}: contains {} checksums, but the samples have {} blocks",
           stored.location, stored.shape[0], expected);
  check_list(stored, samples);
  checksums.values.resize(static_cast<std::size_t>(expected));
  reader.read(stored, io::Hdf5Number::uint64, checksums.values.data());
  return checksums;
}

std::string compare_blocks(
    const ShardChecksums* checksums, BlockRange blocks, std::int64_t rows, const RowWords& words,
    const std::function<void(std::int64_t first, std::int64_t count, io::Xxh3& hash)>& hash_rows) {
  const std::int64_t block =
      checksums != nullptr ? checksums->block : std::max<std::int64_t>(rows, 1);
  io::Xxh3 hash;
  const std::int64_t end = std::min(blocks.end, (rows + block - 1) / block);
  for (std::int64_t index = blocks.first; index < end; ++index) {
    const std::int64_t begin = index * block, count = std::min(block, rows - begin);
    hash.reset();
    hash_rows(begin, count, hash);
    if (checksums == nullptr) continue;
    const std::uint64_t found = hash.digest(),
                        expected = checksums->values[static_cast<std::size_t>(index)];
    if (found != expected)
      return fmt::format(
          "block {} of {} ({} {} to {}): checksum {:016x}, but /checksums has {:016x}", index,
          words.where, words.unit, begin, begin + count - 1, found, expected);
  }
  return "";
}

}  // namespace trireme::data
