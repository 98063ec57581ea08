// SPDX-License-Identifier: Apache-2.0
//
// Makes small valid files of the formats that are fuzzed, and corrects checksums of changed ones.
//
// readers.cpp calls these functions for the first inputs of each reader, and after mutations:
// otherwise nearly every mutant of a tar archive, a PNG or a seal would end at a checksum.
#include "formats.hpp"

#include <array>
#include <bit>
#include <cstdio>

#include <archive.h>
#include <archive_entry.h>
#include <zlib.h>

#include "trireme/data/images/image.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/seal.hpp"
#include "unit/data/test_images.hpp"

namespace trireme::fuzz {
namespace {

constexpr std::size_t tar_block = 512;

data::Image some_image(int height, int width, int channels) {
  data::Image image{height, width, channels, {}};
  const std::string pixels = some_bytes(static_cast<std::size_t>(height * width * channels));
  const auto* const begin = reinterpret_cast<const std::byte*>(pixels.data());
  image.pixels.assign(begin, begin + pixels.size());
  return image;
}

std::string to_string(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::uint32_t crc(const char* data, std::size_t bytes) {
  return static_cast<std::uint32_t>(
      ::crc32(0, reinterpret_cast<const Bytef*>(data), static_cast<uInt>(bytes)));
}

std::string png_chunk(const std::string& kind, const std::string& content) {
  std::string chunk;
  put_big_endian(chunk, static_cast<std::uint32_t>(content.size()));
  chunk += kind + content;
  put_big_endian(chunk, crc(chunk.data() + 4, chunk.size() - 4));
  return chunk;
}

/// Writes the checksum of the tar header that begins at `header`.
void set_tar_checksum(char* header) {
  std::memset(header + 148, ' ', 8);
  unsigned sum = 0;
  for (std::size_t i = 0; i < tar_block; ++i) sum += static_cast<unsigned char>(header[i]);
  std::snprintf(header + 148, 8, "%06o", sum);
}

}  // namespace

std::string some_bytes(std::size_t count) {
  std::string bytes;
  for (std::size_t i = 0; i < count; ++i) bytes += static_cast<char>(i * 37 + i / 50);
  return bytes;
}

std::string gzip_file(const std::string& content) {
  z_stream stream{};
  constexpr int with_gzip_header = 16;
  ::deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + with_gzip_header, 8, Z_DEFAULT_STRATEGY);
  std::string packed(::deflateBound(&stream, static_cast<uLong>(content.size())), '\0');
  std::string in = content;
  stream.next_in = reinterpret_cast<Bytef*>(in.data());
  stream.avail_in = static_cast<uInt>(in.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  ::deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  ::deflateEnd(&stream);
  return packed;
}

std::string deflate(const std::string& content) {
  uLongf bytes = ::compressBound(static_cast<uLong>(content.size()));
  std::string packed(bytes, '\0');
  ::compress(reinterpret_cast<Bytef*>(packed.data()), &bytes,
             reinterpret_cast<const Bytef*>(content.data()), static_cast<uLong>(content.size()));
  packed.resize(bytes);
  return packed;
}

std::string tar_file(const std::vector<std::pair<std::string, std::string>>& files) {
  std::string archive;
  for (const auto& [name, content] : files) {
    std::array<char, tar_block> header{};
    std::memcpy(header.data(), name.data(), name.size());
    std::snprintf(&header[100], 8, "%07o", 0644);
    std::snprintf(&header[124], 12, "%011o", static_cast<unsigned>(content.size()));
    header[156] = name.ends_with('/') ? '5' : '0';
    std::memcpy(&header[257], "ustar\00000", 8);
    set_tar_checksum(header.data());
    archive.append(header.data(), header.size()).append(content);
    archive.append((tar_block - content.size() % tar_block) % tar_block, '\0');
  }
  return archive.append(2 * tar_block, '\0');
}

std::vector<std::string> packed_tar_files(const std::string& image) {
  std::vector<std::string> files;
  for (const auto add_filter : {archive_write_add_filter_bzip2, archive_write_add_filter_xz,
                                archive_write_add_filter_zstd, archive_write_add_filter_lz4}) {
    archive* const writer = archive_write_new();
    std::string packed(image.size() + (64 << 10), '\0');
    std::size_t used = 0;
    // Another status: this libarchive needs a program for it.
    if (add_filter(writer) == ARCHIVE_OK && archive_write_set_format_ustar(writer) == ARCHIVE_OK &&
        archive_write_open_memory(writer, packed.data(), packed.size(), &used) == ARCHIVE_OK) {
      archive_entry* const entry = archive_entry_new();
      archive_entry_set_pathname(entry, "a/1.png");
      archive_entry_set_filetype(entry, AE_IFREG);
      archive_entry_set_size(entry, std::ssize(image));
      archive_write_header(writer, entry);
      archive_write_data(writer, image.data(), image.size());
      archive_entry_free(entry);
      archive_write_close(writer);
      files.push_back(packed.substr(0, used));
    }
    archive_write_free(writer);
  }
  return files;
}

void repair_tar(std::string& bytes) {
  for (std::size_t at = 0; at + tar_block <= bytes.size(); at += tar_block)
    if (std::memcmp(bytes.data() + at + 257, "ustar", 5) == 0) set_tar_checksum(bytes.data() + at);
}

std::string jpeg_file(int height, int width, bool progressive) {
  if (!progressive) return to_string(data::encode_jpeg(some_image(height, width, 3), 80));
  return to_string(data::jpeg_of(some_image(height, width, 3), 2, 2, true));
}

std::string png_file(int height, int width, int channels) {
  return to_string(data::encode_png(some_image(height, width, channels)));
}

std::string png_file(int height, int width, int bit_depth, int color_type, bool interlaced,
                     const std::string& rows) {
  constexpr int palette = 3;
  std::string header;
  put_big_endian(header, static_cast<std::uint32_t>(width));
  put_big_endian(header, static_cast<std::uint32_t>(height));
  header += {static_cast<char>(bit_depth), static_cast<char>(color_type), 0, 0,
             static_cast<char>(interlaced)};
  std::string file = "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header);
  if (color_type == palette) file += png_chunk("PLTE", some_bytes(48)) + png_chunk("tRNS", "\1\2");
  return file + png_chunk("tEXt", std::string("a\0b", 3)) + png_chunk("IDAT", deflate(rows)) +
         png_chunk("IEND", "");
}

void repair_png(std::string& bytes) {
  constexpr std::size_t signature = 8, around = 12;  // length, kind and checksum
  for (std::size_t at = signature; at + around <= bytes.size();) {
    std::string length_bytes = bytes.substr(at, 4);
    std::reverse(length_bytes.begin(), length_bytes.end());
    const std::size_t length = get<std::uint32_t>(length_bytes, 0);
    if (length > bytes.size() - at - around) return;
    std::string checksum;
    put_big_endian(checksum, crc(bytes.data() + at + 4, length + 4));
    bytes.replace(at + 8 + length, 4, checksum);
    at += length + around;
  }
}

std::string idx_file(const std::vector<std::uint32_t>& extents) {
  std::string bytes{0, 0, 8, static_cast<char>(extents.size())};
  std::size_t items = 1;
  for (const std::uint32_t extent : extents) {
    put_big_endian(bytes, extent);
    items *= extent;
  }
  return bytes + some_bytes(items);
}

std::string sealed_file(std::size_t rest_bytes) {
  const auto user_block =
      static_cast<std::size_t>(io::user_block_bytes(static_cast<std::int64_t>(rest_bytes)));
  std::string bytes(io::seal_magic);
  put(bytes, static_cast<std::uint64_t>(rest_bytes));
  const std::string rest = "\x89HDF\r\n\x1a\n" + some_bytes(rest_bytes - 8);
  for (std::size_t at = 0; at < rest.size(); at += io::seal_block_bytes)
    put(bytes,
        io::xxh3(rest.data() + at,
                 std::min(rest.size() - at, static_cast<std::size_t>(io::seal_block_bytes))));
  bytes.resize(user_block, '\0');
  bytes += rest;
  repair_seal(bytes);
  return bytes;
}

void repair_seal(std::string& bytes) {
  if (bytes.size() < 16) return;
  const auto rest = get<std::uint64_t>(bytes, 8);
  if (rest >= bytes.size()) return;
  const std::size_t user_block = bytes.size() - rest;
  const auto blocks = static_cast<std::size_t>(io::seal_blocks(static_cast<std::int64_t>(rest)));
  const std::size_t hash_at = 16 + 8 * blocks;
  if (hash_at + 8 > user_block) return;
  std::memset(bytes.data() + hash_at, 0, 8);
  const std::uint64_t hash = io::xxh3(bytes.data(), user_block);
  std::memcpy(bytes.data() + hash_at, &hash, sizeof hash);
}

std::string safetensors_file(const std::string& header, std::size_t data_bytes) {
  std::string bytes;
  put(bytes, static_cast<std::uint64_t>(header.size()));
  return bytes + header + some_bytes(data_bytes);
}

}  // namespace trireme::fuzz
