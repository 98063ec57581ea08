// Compares the samples of a shard with its /checksums, block by block. verify.cpp calls it for
// finished shards, shard_writer.cpp for a shard that was just written.
#include "shard_checksums.hpp"

#include <algorithm>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"

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

/// Reads /checksums and checks that it has the expected number of blocks.
std::vector<std::uint64_t> stored_checksums(const io::Hdf5Reader& reader, std::int64_t expected) {
  const io::StoredDataset& stored = reader.index().dataset("checksums");
  validate(stored.kind == io::StoredDataset::Kind::integer && stored.element_bytes == 8 &&
               stored.shape.size() == 1,
           "{}: checksums are uint64 [blocks]", stored.location);
  validate(stored.shape[0] == expected, "{}: contains {} checksums, but the samples have {} blocks",
           stored.location, stored.shape[0], expected);
  std::vector<std::uint64_t> values(static_cast<std::size_t>(expected));
  reader.read(stored, io::Hdf5Number::uint64, values.data());
  return values;
}

/// Compares the checksum of each block with the stored one. Returns "" or a description of the
/// first difference. `checksum(first, count)` computes that of samples [first, first + count).
/// `what` and `unit` are words for the message.
template <class Checksum>
std::string compare_blocks(const io::Hdf5Reader& reader, std::int64_t samples, const char* what,
                           const char* unit, Checksum&& checksum) {
  const std::int64_t block =
      std::min(checksum_block(reader.index()), std::max<std::int64_t>(samples, 1));
  const std::vector<std::uint64_t> stored = stored_checksums(reader, (samples + block - 1) / block);
  for (std::int64_t begin = 0; begin < samples; begin += block) {
    const std::int64_t count = std::min(block, samples - begin);
    const std::uint64_t found = checksum(begin, count),
                        expected_checksum = stored[static_cast<std::size_t>(begin / block)];
    if (found != expected_checksum) {
      return fmt::format(
          "block {} of {} ({} {} to {}): checksum {:016x}, but /checksums has {:016x}",
          begin / block, what, unit, begin, begin + count - 1, found, expected_checksum);
    }
  }
  return "";
}

}  // namespace

std::string compare_checksums(const io::Hdf5Reader& reader, const ImageShard& shard,
                              std::int64_t samples) {
  // In pieces: the file itself says how many samples a block has.
  constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;
  const std::int64_t piece = std::max<std::int64_t>(1, piece_bytes / shard.sample_bytes());
  std::vector<std::byte> images;
  io::Xxh3 hash;
  return compare_blocks(reader, samples, "/images and /labels", "samples",
                        [&](std::int64_t begin, std::int64_t count) {
                          hash.reset();
                          for (std::int64_t first = begin; first < begin + count; first += piece) {
                            const std::int64_t part = std::min(piece, begin + count - first);
                            images.resize(static_cast<std::size_t>(part * shard.sample_bytes()));
                            shard.read(first, part, images.data());
                            hash.update(images.data(), images.size());
                          }
                          hash.update(shard.labels().data() + begin,
                                      static_cast<std::size_t>(count) * sizeof(std::int32_t));
                          return hash.digest();
                        });
}

std::string compare_checksums(const io::Hdf5Reader& reader, const TokenShard& shard,
                              std::int64_t samples) {
  constexpr std::int64_t piece_tokens = 1 << 20;
  std::vector<std::byte> piece;
  io::Xxh3 hash;
  return compare_blocks(
      reader, samples, "/tokens", "tokens", [&](std::int64_t first, std::int64_t tokens) {
        hash.reset();
        for (const std::int64_t end = first + tokens; first < end; first += piece_tokens) {
          const std::int64_t part = std::min(piece_tokens, end - first);
          piece.resize(static_cast<std::size_t>(part * shard.token_bytes()));
          shard.read(first, part, piece.data());
          hash.update(piece.data(), piece.size());
        }
        return hash.digest();
      });
}

}  // namespace trireme::data
