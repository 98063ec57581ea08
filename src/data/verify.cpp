// Verifies a shard; `trireme verify` calls verify_shard().
//
// 1. With a seal: compare it with the bytes of the file, before HDF5 opens it.
// 2. Probe the untrusted file in a separate process, read its header and document offsets. A seal
//    shows damage, not origin, so sealed shards are probed too.
// 3. With checksums: compare each block. Without: read everything once.
// 4. Tokens: check that each is below the vocabulary. Checksums cannot show this; they only show
//    that the data have not changed since they were written.
#include "trireme/data/verify.hpp"

#include <algorithm>
#include <memory>
#include <vector>

#include "image_shard.hpp"
#include "shard_checksums.hpp"
#include "shard_header.hpp"
#include "token_shard.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hdf5_probe.hpp"

namespace trireme::data {
namespace {

constexpr std::int64_t piece_bytes = std::int64_t{4} << 20;

/// Reads all images once. Throws if one cannot be read.
void read_images(const std::string& path, const ShardDescription& header) {
  const ImageShard shard(io::Hdf5File::open(path), header, std::make_shared<RowCache>(0));
  const std::int64_t piece = std::max<std::int64_t>(1, piece_bytes / shard.sample_bytes());
  std::vector<std::byte> images(
      static_cast<std::size_t>(std::min(piece, header.samples) * shard.sample_bytes()));
  for (std::int64_t first = 0; first < header.samples; first += piece)
    shard.read(first, std::min(piece, header.samples - first), images.data());
}

/// Reads all tokens once. Throws InputError if one is not below the vocabulary.
void read_tokens(const std::string& path, const ShardDescription& header) {
  constexpr std::int64_t piece = piece_bytes / static_cast<std::int64_t>(sizeof(std::int32_t));
  const TokenShard shard(io::Hdf5File::open(path), header, std::make_shared<RowCache>(0));
  std::vector<std::int32_t> ids(static_cast<std::size_t>(std::min(piece, header.samples)));
  for (std::int64_t first = 0; first < header.samples; first += piece)
    shard.read_ids(first, std::min(piece, header.samples - first), ids.data());
}

}  // namespace

std::string verify_shard(const std::string& path, io::SealCheck check) {
  const std::string seal = io::check_seal(path, check);
  if (!seal.empty() && seal != "no seal") return seal;
  io::probe_hdf5({path});
  const io::Hdf5File file = io::Hdf5File::open(path);
  const ShardDescription header = read_header(file);
  check_document_offsets(file, header);
  validate(header.kind != DatasetKind::encoded_images,
           "{}: contains {}, which this version does not read; it reads shards of images (uint8 "
           "pixels) and of tokens",
           path, to_string(header.kind));
  if (header.checksums) {
    const std::string difference = compare_checksums(file, header);
    if (!difference.empty()) return difference;
  }
  if (header.kind == DatasetKind::tokens)
    read_tokens(path, header);
  else if (!header.checksums)
    read_images(path, header);
  return seal.empty() || header.checksums ? seal : "no checksums";
}

}  // namespace trireme::data
