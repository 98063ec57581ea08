#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

// Every shard is written under a temporary name, flushed to the disk, then renamed: a file with the
// final name is whole. Where the disk fails, Failure is thrown and the temporary file removed.
// Datasets are contiguous.

/// "shard_00000.h5"
std::string shard_file_name(std::int64_t index);

/// What all shards of a set of images have in common.
struct ImageSetOptions {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::string> classes;    ///< may be empty
  std::int64_t checksum_block = 1024;  ///< samples a checksum; 0: none are written
};

/// Writes one shard of images (docs/contract section 5). `images` holds labels.size() * height *
/// width * channels bytes. Throws InputError for labels below 0 or past the classes, Failure.
/// Returns the file's bytes.
std::int64_t write_image_shard(const std::string& path, const ImageSetOptions& options,
                               std::span<const std::byte> images,
                               std::span<const std::int32_t> labels);

/// The checksums of samples in blocks of `block`: XXH3 over a block's image bytes, then its labels'
/// (int32, little-endian).
std::vector<std::uint64_t> image_checksums(std::span<const std::byte> images,
                                           std::span<const std::int32_t> labels,
                                           std::int64_t sample_bytes, std::int64_t block);

/// What all shards of a set of tokens have in common.
struct TokenSetOptions {
  std::int64_t vocabulary = 0;
  std::string tokenizer;                      ///< attribute; empty: none
  std::int64_t checksum_block = 1024 * 1024;  ///< tokens a checksum; 0: none are written

  /// Bytes of a token: the narrowest of uint8, uint16, uint32 that holds the vocabulary.
  std::int64_t token_bytes() const;
};

/// Writes one shard of `count` tokens, which come from `next` in order, a piece a call
/// (token_bytes() each, little-endian), so that memory does not grow with the shard. `documents`:
/// [documents + 1] offsets from 0 to `count`; empty: none are written. Throws what `next` throws,
/// Failure. Returns the file's bytes.
std::int64_t write_token_shard(const std::string& path, const TokenSetOptions& options,
                               std::int64_t count, std::span<const std::uint64_t> documents,
                               const std::function<void(std::span<std::byte>)>& next);

}  // namespace trireme::data
