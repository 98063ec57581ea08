// The seal of a checkpoint: XXH3 hashes of all bytes, stored in the user block before the HDF5
// data.
//
// Writers (file_plan.cpp) reserve the user block first and fill it last, after the file was read
// back. check_seal() runs before HDF5 opens a file, so damaged bytes never reach the HDF5 library.
// It checks the signature, the sizes, the hash of the user block and the hash of each 4 MiB block.
#include "seal.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "trireme/base/check.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hash.hpp"
#include "trireme/io/hdf5_probe.hpp"

namespace trireme::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the seal is written as this machine holds numbers");

constexpr std::string_view hdf5_signature("\x89HDF\r\n\x1a\n", 8);
constexpr std::int64_t min_user_block_bytes = 512, head_bytes = 16;

/// Returns the 64-bit number at byte `offset`.
std::uint64_t read_number(const std::string& bytes, std::int64_t offset) {
  std::uint64_t number;
  std::memcpy(&number, bytes.data() + offset, sizeof number);
  return number;
}

void write_number(std::string& bytes, std::int64_t offset, std::uint64_t number) {
  std::memcpy(bytes.data() + offset, &number, sizeof number);
}

/// Returns the size of a seal: magic and length, one hash for each block, its own hash.
std::int64_t seal_bytes(std::int64_t rest_bytes) {
  return head_bytes + 8 * seal_blocks(rest_bytes) + 8;
}

/// Returns the offset of the HDF5 signature after a user block (a power of two from 512); 0 if
/// there is none.
std::int64_t find_hdf5_offset(const io::File& file, std::int64_t size) {
  std::string bytes(hdf5_signature.size(), '\0');
  for (std::int64_t offset = min_user_block_bytes; offset + 8 <= size; offset *= 2) {
    file.read_at(offset, bytes.data(), 8);
    if (bytes == hdf5_signature) return offset;
  }
  return 0;
}

/// Compares the hash of each block. Returns "" or a message for the first block that differs.
std::string check_blocks(const io::File& file, const std::string& user_block, std::int64_t rest) {
  const std::int64_t begin = static_cast<std::int64_t>(user_block.size()),
                     blocks = seal_blocks(rest);
  std::string buffer(static_cast<std::size_t>(std::min(rest, seal_block_bytes)), '\0');
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t offset = begin + block * seal_block_bytes,
                       bytes = std::min(seal_block_bytes, begin + rest - offset);
    file.read_at(offset, buffer.data(), bytes);
    if (io::xxh3(buffer.data(), static_cast<std::size_t>(bytes)) !=
        read_number(user_block, head_bytes + 8 * block)) {
      return fmt::format(
          "bytes {} to {} (block {} of {}) do not match the seal: the file is damaged "
          "there",
          offset, offset + bytes, block + 1, blocks);
    }
  }
  return "";
}

}  // namespace

std::int64_t seal_blocks(std::int64_t rest_bytes) {
  return (rest_bytes + seal_block_bytes - 1) / seal_block_bytes;
}

std::int64_t user_block_bytes(std::int64_t rest_bytes) {
  return std::max(
      min_user_block_bytes,
      static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(seal_bytes(rest_bytes)))));
}

std::string make_user_block(std::int64_t bytes, std::int64_t rest_bytes,
                            std::span<const std::uint64_t> block_hashes) {
  ensure(seal_bytes(rest_bytes) <= bytes, "the seal of {} bytes does not fit in a user block of {}",
         rest_bytes, bytes);
  TRIREME_EXPECT(static_cast<std::int64_t>(block_hashes.size()) == seal_blocks(rest_bytes));
  std::string block(static_cast<std::size_t>(bytes), '\0');
  std::copy(seal_magic.begin(), seal_magic.end(), block.begin());
  write_number(block, 8, static_cast<std::uint64_t>(rest_bytes));
  for (std::size_t i = 0; i < block_hashes.size(); ++i)
    write_number(block, head_bytes + 8 * static_cast<std::int64_t>(i), block_hashes[i]);
  write_number(block, seal_bytes(rest_bytes) - 8, io::xxh3(block.data(), block.size()));
  return block;
}

bool has_seal(const std::string& path) {
  const io::File file(path, io::File::Mode::read);
  std::string magic(seal_magic.size(), '\0');
  if (file.size() < static_cast<std::int64_t>(magic.size())) return false;
  file.read_at(0, magic.data(), static_cast<std::int64_t>(magic.size()));
  return magic == seal_magic;
}

void reject_folder(const std::string& path) {
  // A path that cannot be examined cannot be opened either; that error names the reason.
  std::error_code ignored;
  const bool folder = std::filesystem::is_directory(path, ignored);
  validate(!folder,
           "{}: is a folder, but must be a file; of a run folder name one of its checkpoints/*.h5",
           path);
}

std::string check_seal(const std::string& path, SealCheck check) {
  reject_folder(path);
  const io::File file(path, io::File::Mode::read);
  const std::int64_t size = file.size();
  if (size < head_bytes) return fmt::format("the file has only {} bytes: it is cut short", size);
  std::string head(head_bytes, '\0');
  file.read_at(0, head.data(), head_bytes);
  // 1. An HDF5 file without user block has no seal.
  if (head.starts_with(hdf5_signature)) {
    io::probe_hdf5({path});
    return "no seal";
  }
  // 2. The length in the seal must agree with the file size; the user block must have a valid size.
  const bool magic = head.starts_with(seal_magic);
  const std::uint64_t stored_rest = read_number(head, 8);
  const std::int64_t rest = stored_rest < static_cast<std::uint64_t>(size)
                                ? static_cast<std::int64_t>(stored_rest)
                                : 0,
                     begin = size - rest;
  const bool fits = rest > 0 && begin >= min_user_block_bytes &&
                    std::has_single_bit(static_cast<std::uint64_t>(begin)) &&
                    seal_bytes(rest) <= begin;
  if (!fits) {
    const std::int64_t found = find_hdf5_offset(file, size);
    if (!magic && found == 0)
      return "bytes 0 to 8 are neither a seal nor HDF5: not a checkpoint, or its beginning is "
             "damaged";
    if (!magic) return fmt::format("bytes 0 to {}: the seal is damaged", found);
    return fmt::format(
        "the file has {} bytes, but its seal (bytes 8 to 16) counts {} after the user block of "
        "{}: it was cut short or extended, or the seal is "
        "damaged",
        size, stored_rest, found);
  }
  // 3. The user block must match its own hash, computed with that field as 0.
  std::string user_block(static_cast<std::size_t>(begin), '\0');
  file.read_at(0, user_block.data(), begin);
  const std::int64_t hash_at = seal_bytes(rest) - 8;
  const std::uint64_t hash = read_number(user_block, hash_at);
  write_number(user_block, hash_at, 0);
  if (!magic || hash != io::xxh3(user_block.data(), user_block.size()))
    return fmt::format("bytes 0 to {}: the seal itself is damaged", begin);
  // 4. Each block must match its hash.
  return check == SealCheck::head ? "" : check_blocks(file, user_block, rest);
}

}  // namespace trireme::checkpoint
