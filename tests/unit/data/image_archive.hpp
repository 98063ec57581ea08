// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <zlib.h>

#include "trireme/io/file.hpp"

namespace trireme::data {

inline std::string big_endian(std::uint32_t value) {
  std::string text;
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

inline std::string png_chunk(const std::string& kind, const std::string& data) {
  const std::string content = kind + data;
  const uLong checksum =
      crc32(0, reinterpret_cast<const Bytef*>(content.data()), static_cast<uInt>(content.size()));
  return big_endian(static_cast<std::uint32_t>(data.size())) + content +
         big_endian(static_cast<std::uint32_t>(checksum));
}

/// Returns a PNG file of RGB pixels with 8 bits, whose rows have no filter.
inline std::string png_file(std::uint32_t width, std::uint32_t height, const std::string& pixels) {
  std::string rows;
  for (std::size_t at = 0; at < pixels.size(); at += 3 * width)
    rows += std::string(1, 0) + pixels.substr(at, 3 * width);
  uLongf bytes = compressBound(rows.size());
  std::string packed(bytes, ' ');
  compress(reinterpret_cast<Bytef*>(packed.data()), &bytes,
           reinterpret_cast<const Bytef*>(rows.data()), rows.size());
  packed.resize(bytes);
  const std::string form{8, 2, 0, 0, 0};
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", big_endian(width) + big_endian(height) + form) +
         png_chunk("IDAT", packed) + png_chunk("IEND", "");
}

/// Returns bytes that differ from each other.
inline std::string pixels_of(std::size_t count) {
  std::string pixels;
  for (std::size_t i = 0; i < count; ++i) pixels += static_cast<char>(i * 7 + i / 50);
  return pixels;
}

/// Returns a tar archive with one file for each pair of name and content.
inline std::string tar_file(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string archive;
  for (const auto& [name, content] : files) {
    std::array<char, 512> header{};
    std::memcpy(header.data(), name.data(), name.size());
    std::snprintf(&header[100], 8, "%07o", 0644);
    std::snprintf(&header[124], 12, "%011o", static_cast<unsigned>(content.size()));
    header[156] = '0';
    std::memcpy(&header[257], "ustar\00000", 8);
    std::memset(&header[148], ' ', 8);
    unsigned sum = 0;
    for (const char c : header) sum += static_cast<unsigned char>(c);
    std::snprintf(&header[148], 8, "%06o", sum);
    archive.append(header.data(), header.size());
    archive += content + std::string((512 - content.size() % 512) % 512, 0);
  }
  return archive + std::string(1024, 0);
}

inline void put_file(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // some file systems flush a file that is truncated
  const io::File file(path, io::File::Mode::create);
  file.write_at(0, bytes.data(), std::ssize(bytes));
}

}  // namespace trireme::data
