// Verifies a shard; `trireme verify` calls verify_shard().
//
// 1. With a seal: compare it with the bytes of the file, before HDF5 opens it.
// 2. Index the untrusted file, read its header and document offsets. A seal shows damage, not
//    origin, so a child process opens sealed shards, too.
// 3. With checksums: compare each block. Without: read everything once.
// 4. Tokens: check that each is below the vocabulary. Checksums cannot show this; they only show
//    that the data have not changed since they were written.
#include "trireme/data/verify.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/seal.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;

/// Reads all images once. Throws if one cannot be read.
void read_images(const ImageShard& shard, std::int64_t samples) {
  const std::int64_t piece = std::max<std::int64_t>(1, piece_bytes / shard.sample_bytes());
  std::vector<std::byte> images(
      static_cast<std::size_t>(std::min(piece, samples) * shard.sample_bytes()));
  for (std::int64_t first = 0; first < samples; first += piece)
    shard.read(first, std::min(piece, samples - first), images.data());
}

/// Reads all tokens once. Throws InputError if one is not below the vocabulary.
void read_tokens(const TokenShard& shard, std::int64_t tokens) {
  constexpr std::int64_t piece = piece_bytes / static_cast<std::int64_t>(sizeof(std::int32_t));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(piece, tokens)));
  for (std::int64_t first = 0; first < tokens; first += piece)
    shard.read_ids(first, std::min(piece, tokens - first), ids.data());
}

}  // namespace

std::string verify_shard(const std::string& path) {
  const std::string seal = io::check_seal(path);
  return io::is_damage(seal) ? seal : io::with_seal(seal, verify_shard(io::index_hdf5(path)));
}

std::string verify_shard(io::Hdf5Index file) {
  const io::Hdf5Reader reader(std::move(file));
  const ShardDescription header = read_header(reader.index());
  check_document_offsets(reader, header);
  ShardIndex shard = index_shard(reader, header);
  io::FilePool files(1);
  const auto cache = std::make_shared<RowCache>(0);
  std::string difference;
  if (header.kind == DatasetKind::tokens) {
    const TokenShard tokens(std::move(shard), header.vocabulary, files, cache);
    if (header.checksums) difference = compare_checksums(reader, tokens, header.samples);
    if (difference.empty()) read_tokens(tokens, header.samples);
  } else {
    const ImageShard images(std::move(shard), files, cache);
    if (header.checksums)
      difference = compare_checksums(reader, images, header.samples);
    else
      read_images(images, header.samples);
  }
  return header.checksums ? difference : "no checksums";
}

}  // namespace trireme::data
