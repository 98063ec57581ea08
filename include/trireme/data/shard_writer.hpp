#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace trireme::data {

/// What all shards of a set of images have in common.
struct ImageSetOptions {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::string> classes;      ///< may be empty
  std::int64_t checksum_block = 1024;    ///< samples a checksum; 0: none are written
};

/// "shard_00000.h5"
std::string shard_file_name(std::int64_t index);

/// Writes one shard of images (docs/contract section 5): contiguous datasets, labels, classes, checksums. Under a temporary name, flushed to
/// the disk, then renamed: a file with the final name is whole. `images` holds labels.size() * height * width * channels bytes.
/// Throws InputError for labels below 0 or past the classes, Failure where the disk fails (the temporary file is removed). Returns the file's bytes.
std::int64_t write_image_shard(const std::string& path, const ImageSetOptions& options, std::span<const std::byte> images,
                               std::span<const std::int32_t> labels);

/// The checksums of samples in blocks of `block`: XXH3 over a block's image bytes, then its labels' (int32, little-endian).
std::vector<std::uint64_t> image_checksums(std::span<const std::byte> images, std::span<const std::int32_t> labels, std::int64_t sample_bytes,
                                           std::int64_t block);

}  // namespace trireme::data
