// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace trireme::fuzz {

// Makes small files of the formats that are fuzzed.

/// Appends a number in the byte order of this machine, which is little-endian.
template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

/// Appends a number with its highest byte first.
template <class T>
void put_big_endian(std::string& bytes, T value) {
  put(bytes, value);
  std::reverse(bytes.end() - static_cast<std::ptrdiff_t>(sizeof value), bytes.end());
}

/// Reads a number at an offset that is within the bytes.
template <class T>
T get(const std::string& bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// Returns the bytes 0, 37, 74, ... without a short period.
std::string some_bytes(std::size_t count);

std::string gzip_file(const std::string& content);
/// Returns the bytes that zlib's compress() makes, as HDF5 stores a chunk.
std::string deflate(const std::string& content);

/// Returns a tar archive. A name that ends with '/' makes a folder.
std::string tar_file(const std::vector<std::pair<std::string, std::string>>& files);
/// Returns tar archives of one image, compressed in the other forms that libarchive writes.
std::vector<std::string> packed_tar_files(const std::string& image);
/// Corrects the checksums of the blocks that look like headers.
void repair_tar(std::string& bytes);

/// Returns a JPEG file of color.
std::string jpeg_file(int height, int width, bool progressive);
/// Returns a PNG file of 8 bits with `channels` 1 or 3.
std::string png_file(int height, int width, int channels);
/// Returns a PNG file of any type of color and bit depth, with the given rows.
std::string png_file(int height, int width, int bit_depth, int color_type, bool interlaced,
                     const std::string& rows);
/// Corrects the checksums of the chunks.
void repair_png(std::string& bytes);

/// Returns the bytes of an idx file.
std::string idx_file(const std::vector<std::uint32_t>& extents);

/// Returns a file with a seal (io/seal.hpp) that has `rest_bytes` bytes behind it.
std::string sealed_file(std::size_t rest_bytes);
/// Corrects the hash of the seal.
void repair_seal(std::string& bytes);

/// Returns a .safetensors file.
std::string safetensors_file(const std::string& header, std::size_t data_bytes);

}  // namespace trireme::fuzz
