// SPDX-License-Identifier: Apache-2.0
//
// The seal of an HDF5 file: XXH3 hashes of all bytes, stored in the user block before the HDF5
// data.
//
// Writers of checkpoints and shards reserve the user block first and fill it last, after the file
// was read back. check_seal() runs before HDF5 opens a file, so damaged bytes never reach the HDF5
// library. It checks the signature, the sizes, the hash of the user block and the hash of each
// 4 MiB block.
#include "trireme/io/seal.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/file_form.hpp"
#include "trireme/io/hash.hpp"

namespace trireme::io {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the seal is written as this machine holds numbers");

constexpr std::string_view hdf5_signature("\x89HDF\r\n\x1a\n", 8);
constexpr std::int64_t min_user_block_bytes = 512, head_bytes = 16;
// Checkpoints and shards have a user block of at least this size. Without the magic a smaller one
// belongs to another program, and a larger one is a damaged seal.
constexpr std::int64_t min_sealed_user_block_bytes = 4096;
// The seal of 32 TiB. It is read into memory.
constexpr std::int64_t max_user_block_bytes = std::int64_t{64} << 20;

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
std::int64_t find_hdf5_offset(const File& file, std::int64_t size) {
  std::string bytes(hdf5_signature.size(), '\0');
  for (std::int64_t offset = min_user_block_bytes; offset + 8 <= size; offset *= 2) {
    file.read_at(offset, bytes.data(), 8);
    if (bytes == hdf5_signature) return offset;
  }
  return 0;
}

/// The place of a block in the file.
struct BlockRange {
  std::int64_t offset = 0, bytes = 0;
};

/// Returns the place of a block. The blocks cover `rest` bytes from `begin` on.
BlockRange range_of_block(std::int64_t block, std::int64_t begin, std::int64_t rest) {
  const std::int64_t offset = begin + block * seal_block_bytes;
  return {offset, std::min(seal_block_bytes, begin + rest - offset)};
}

/// Reads blocks of a file and returns their hashes.
class BlockHasher {
 public:
  explicit BlockHasher(const File& file) : file_(file) {}
  std::uint64_t hash(const BlockRange& range) {
    buffer_.resize(static_cast<std::size_t>(range.bytes));
    file_.read_at(range.offset, buffer_.data(), range.bytes);
    return xxh3(buffer_.data(), buffer_.size());
  }

 private:
  const File& file_;
  std::vector<char> buffer_;
};

/// Compares the hash of each block. Returns "" or a message for the first block that differs.
std::string check_blocks(const File& file, const std::string& user_block, std::int64_t rest) {
  const std::int64_t begin = static_cast<std::int64_t>(user_block.size()),
                     blocks = seal_blocks(rest);
  BlockHasher hasher(file);
  for (std::int64_t block = 0; block < blocks; ++block) {
    const BlockRange range = range_of_block(block, begin, rest);
    if (hasher.hash(range) != read_number(user_block, head_bytes + 8 * block)) {
      return fmt::format(
          "bytes {} to {} (block {} of {}) do not match the seal: the file is damaged "
          "there",
          range.offset, range.offset + range.bytes, block + 1, blocks);
    }
  }
  return "";
}

/// Returns the user block of `bytes` bytes with its seal. Throws Failure if the seal does not fit.
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
  write_number(block, seal_bytes(rest_bytes) - 8, xxh3(block.data(), block.size()));
  return block;
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

void write_seal(const std::string& path, std::int64_t user_block, std::int64_t file_bytes,
                std::span<const std::uint64_t> block_hashes) {
  const std::string block = make_user_block(user_block, file_bytes - user_block, block_hashes);
  File file(path, File::Mode::update);
  file.write_at(0, block.data(), user_block);
  file.sync();
  std::string again(block.size(), '\0');
  file.read_at(0, again.data(), user_block);
  ensure(again == block && file.size() == file_bytes,
         "{}: the seal on disk differs from the one that was written", path);
  file.close();
}

void seal_file(const std::string& path, std::int64_t user_block) {
  const File file(path, File::Mode::read);
  const std::int64_t file_bytes = file.size(), rest = file_bytes - user_block;
  BlockHasher hasher(file);
  std::vector<std::uint64_t> hashes;
  for (std::int64_t block = 0; block < seal_blocks(rest); ++block)
    hashes.push_back(hasher.hash(range_of_block(block, user_block, rest)));
  write_seal(path, user_block, file_bytes, hashes);
}

bool has_seal(const std::string& path) { return has_seal(File(path, File::Mode::read)); }

bool has_seal(const File& file) {
  std::string magic(seal_magic.size(), '\0');
  if (file.size() < static_cast<std::int64_t>(magic.size())) return false;
  file.read_at(0, magic.data(), static_cast<std::int64_t>(magic.size()));
  return magic == seal_magic;
}

std::string check_seal(const std::string& path, SealCheck check) {
  return check_seal(File(path, File::Mode::read), check);
}

std::string check_seal(const File& file, SealCheck check) {
  const std::int64_t size = file.size();
  if (size < head_bytes) return fmt::format("the file has only {} bytes: it is cut short", size);
  std::string head(head_bytes, '\0');
  file.read_at(0, head.data(), head_bytes);
  // 1. An HDF5 file without user block has no seal.
  if (head.starts_with(hdf5_signature)) return "no seal";
  // 2. The length in the seal must agree with the file size; the user block must have a valid size.
  const bool magic = head.starts_with(seal_magic);
  const std::uint64_t stored_rest = read_number(head, 8);
  const std::int64_t rest = stored_rest < static_cast<std::uint64_t>(size)
                                ? static_cast<std::int64_t>(stored_rest)
                                : 0,
                     begin = size - rest;
  const bool fits = rest > 0 && begin >= min_user_block_bytes && begin <= max_user_block_bytes &&
                    std::has_single_bit(static_cast<std::uint64_t>(begin)) &&
                    seal_bytes(rest) <= begin;
  if (!fits) {
    const std::int64_t found = find_hdf5_offset(file, size);
    if (!magic && found > 0 && found < min_sealed_user_block_bytes) return "no seal";
    if (!magic && found == 0)
      return "bytes 0 to 8 are neither a seal nor HDF5: not a checkpoint or shard, or its "
             "beginning is damaged" +
             form_hint(recognize_form(file.path()));
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
  if (!magic || hash != xxh3(user_block.data(), user_block.size()))
    return fmt::format("bytes 0 to {}: the seal itself is damaged", begin);
  // 4. Each block must match its hash.
  return check == SealCheck::head ? "" : check_blocks(file, user_block, rest);
}

std::string damage_of_hdf5(const std::string& path) {
  const File file(path, File::Mode::read);
  std::string head(hdf5_signature.size(), '\0');
  const bool is_short = file.size() < std::ssize(head);
  if (!is_short) file.read_at(0, head.data(), std::ssize(head));
  if (is_short || head == seal_magic) {
    const std::string seal = check_seal(file, SealCheck::head);
    if (is_damage(seal)) return seal;
  }
  const bool is_hdf5 = head == hdf5_signature || find_hdf5_offset(file, file.size()) > 0;
  return is_hdf5 ? "the HDF5 file is cut short or damaged" : "";
}

bool is_damage(const std::string& seal) { return !seal.empty() && seal != "no seal"; }

std::string with_seal(const std::string& seal, const std::string& values) {
  // A seal covers all values.
  if (values == "no checksums") return seal.empty() ? "" : values;
  return values.empty() ? seal : values;
}

}  // namespace trireme::io
