// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "trireme/data/shards/shard.hpp"

namespace trireme::data {

// Writers of shards. A shard is written under a temporary name, flushed to the disk, read back,
// sealed (io/seal.hpp), then renamed: a file with its final name is complete. If the disk fails,
// the temporary file is removed and Failure is thrown. Equal input gives equal bytes. HDF5 datasets
// are contiguous. See docs/reference/files.md for the format.

/// Returns the file name of a shard: "shard_00000.h5".
std::string shard_file_name(std::int64_t index);

/// Properties that all shards of a set of images share.
struct ImageSetOptions {
  std::int64_t height = 0, width = 0, channels = 0;
  std::vector<std::string> classes = {};  ///< may be empty
  std::int64_t checksum_block = 1024;     ///< samples per checksum; 0: no checksums
  DType pixel_type = DType::uint8;        ///< see SampleInfo::dtype
  /// Kind and extents of the targets; one class: labels.
  StoredTarget target = {};
  std::vector<std::string> table = {};  ///< table_lines() of the files they are from

  /// Returns the bytes of an image, and those of its label or target in memory.
  std::int64_t image_bytes() const { return height * width * channels * size_of(pixel_type); }
  std::int64_t target_bytes() const;
  /// Throws InputError if no shard may hold such images. `where`: what they are from.
  void check_extents(const std::string& where) const;
};

/// Writes one shard of images and returns the bytes of the file. For each sample `images` holds
/// image_bytes() bytes, and `targets` target_bytes() as SampleSource::read() returns them with
/// TargetUse::exact: float64, or int32 classes, of which -1 does not count in pixels. Numbers are
/// stored as float32 if that holds all of them exactly; classes of pixels with the fewest bytes
/// that hold `target.extents.count` of them.
///
/// Throws InputError for a label below 0 or not below the number of classes, Failure if the disk is
/// full or fails.
std::int64_t write_image_shard(const std::string& path, const ImageSetOptions& options,
                               std::span<const std::byte> images,
                               std::span<const std::byte> targets);

/// Writes one shard of encoded images and returns the bytes of the file. `files` holds JPEG and PNG
/// files one after the other; file i is [offsets[i], offsets[i + 1]). `options`: classes and
/// checksum_block are used.
///
/// Throws InputError as write_image_shard() does, Failure if the disk is full or fails.
std::int64_t write_encoded_image_shard(const std::string& path, const ImageSetOptions& options,
                                       std::span<const std::byte> files,
                                       std::span<const std::uint64_t> offsets,
                                       std::span<const std::int32_t> labels);

/// Properties that all shards of a set of tokens share.
struct TokenSetOptions {
  std::int64_t vocabulary = 0;
  std::string tokenizer = {};                 ///< attribute of the file; empty: none
  std::string tokenizer_digest = {};          ///< digest_of_model(); empty: none
  std::int64_t checksum_block = 1024 * 1024;  ///< tokens per checksum; 0: no checksums
  std::int64_t end_of_text = -1;              ///< token after every document; -1: none

  /// Returns the bytes of a stored token: the narrowest of uint8, uint16, uint32 that holds the
  /// vocabulary.
  std::int64_t token_bytes() const;
};

/// Writes one shard of `count` tokens and returns the bytes of the file.
///
/// `next` fills the given span with the following tokens (token_bytes() each, little-endian). It is
/// called once per 2^20 tokens, so memory does not grow with the shard. `documents`: offsets
/// [documents + 1] from 0 to `count`; empty: none are written. Throws InputError for a
/// token that is not below the vocabulary, the errors of `next`, and Failure.
std::int64_t write_token_shard(const std::string& path, const TokenSetOptions& options,
                               std::int64_t count, std::span<const std::uint64_t> documents,
                               const std::function<void(std::span<std::byte>)>& next);

}  // namespace trireme::data
