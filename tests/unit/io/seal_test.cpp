// SPDX-License-Identifier: Apache-2.0
//
// The seal of any HDF5 file: the size of its user block, and finding of changed bytes.
// tests/unit/checkpoint and tests/unit/data test the seals of checkpoints and shards.
#include "trireme/io/seal.hpp"

#include <bit>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/file.hpp"
#include "trireme/io/hdf5/hdf5_index.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;
using testing::Not;

using test::message_of;

/// Writes an HDF5 file with a dataset of `values` numbers after a user block.
void write_file(const std::string& path, std::int64_t user_block, std::int64_t values) {
  Hdf5File file = Hdf5File::create(path, {.user_block_bytes = user_block});
  const std::vector<std::int64_t> numbers(static_cast<std::size_t>(values), 7);
  const std::int64_t shape[1] = {values};
  file.create_dataset("numbers", Hdf5Number::int64, shape)
      .write_all(Hdf5Number::int64, numbers.data());
  file.close();
}

TEST(Seal, TheUserBlockIsTheSmallestPowerOfTwoThatHoldsOneHashABlock) {
  for (const std::int64_t blocks : {1, 61, 62, 509, 510, 1'000'000}) {
    const std::int64_t bytes = user_block_bytes(blocks * seal_block_bytes),
                       seal = 24 + 8 * blocks;  // magic, length, hashes, own hash
    EXPECT_TRUE(std::has_single_bit(static_cast<std::uint64_t>(bytes))) << blocks;
    EXPECT_GE(bytes, seal) << blocks;
    EXPECT_TRUE(bytes == 512 || bytes / 2 < seal) << blocks;
    // One byte more needs another hash.
    EXPECT_GE(user_block_bytes(blocks * seal_block_bytes + 1), seal + 8) << blocks;
  }
}

TEST(Seal, ACutOrDamagedFileIsNamedAsSuch) {
  const test::ScratchFolder folder;
  const std::string path = folder / "file.h5";
  const auto refusal_of = [&](const std::string& bytes) {
    replace_file(path, bytes);
    const std::string message = message_of<InputError>([&] { index_hdf5(path); });
    EXPECT_THAT(message, Not(HasSubstr("numpy")));
    return message;
  };
  for (const std::int64_t user_block : {0, 512, 4096}) {
    write_file(path, user_block, 1000);
    const std::string whole = read_text_file(path);
    const auto begin = static_cast<std::size_t>(user_block);
    for (const std::size_t bytes : {begin + 40, begin + 200, whole.size() / 2, whole.size() - 9})
      EXPECT_THAT(refusal_of(whole.substr(0, bytes)),
                  HasSubstr("the HDF5 file is cut short or damaged; copy it again or make it"))
          << user_block << " " << bytes;
    std::string other = whole;
    other[begin + 8] = 77;  // the version of the superblock
    EXPECT_THAT(refusal_of(other), HasSubstr("the HDF5 file cannot be opened: a part of it has a "
                                             "version"));
    EXPECT_THAT(refusal_of(whole.substr(0, 6)), HasSubstr("only 6 bytes: it is cut short; copy"));
  }
  write_file(path, 4096, 1000);
  seal_file(path, 4096);
  const std::string sealed = read_text_file(path);
  for (const std::size_t bytes : {std::size_t{40}, std::size_t{5000}, sealed.size() - 9})
    EXPECT_THAT(refusal_of(sealed.substr(0, bytes)),
                HasSubstr("it was cut short or extended, or the seal is damaged; copy it again"))
        << bytes;
  EXPECT_THAT(refusal_of("a text, which is not HDF5"), HasSubstr("not an HDF5 file"));
  EXPECT_THAT(refusal_of("\x1f\x8b\x08 packed"), HasSubstr("it is a gzip file; unpack it"));
}

TEST(Seal, AFileIsReadAsBeforeAndTheChangeOfAnyBlockIsFound) {
  const test::ScratchFolder folder;
  const std::string path = folder / "file.h5";
  const std::int64_t values = 3 * seal_block_bytes / 8;
  write_file(path, 512, values);
  EXPECT_FALSE(has_seal(path));
  seal_file(path, 512);
  EXPECT_TRUE(has_seal(path));
  EXPECT_EQ(check_seal(path), "");
  EXPECT_EQ(index_own_hdf5(path).dataset("numbers").shape[0], values);
  const File file(path, File::Mode::update);
  for (std::int64_t block = 0; block < seal_blocks(file.size() - 512); ++block) {
    const std::int64_t place = 512 + block * seal_block_bytes;
    char byte = 0;
    file.read_at(place, &byte, 1);
    const char changed = static_cast<char>(byte ^ 1);
    file.write_at(place, &changed, 1);
    EXPECT_THAT(check_seal(path), HasSubstr(fmt::format("block {} of", block + 1)));
    EXPECT_EQ(check_seal(path, SealCheck::head), "");
    file.write_at(place, &byte, 1);
  }
  EXPECT_EQ(check_seal(path), "");
}

TEST(Seal, DoesNotOverwriteDataIfTheUserBlockIsTooSmall) {
  const test::ScratchFolder folder;
  const std::string path = folder / "file.h5";
  write_file(path, 512, 8);
  const std::vector<std::uint64_t> hashes(62);  // 24 + 62 * 8 = 520 bytes
  const std::string before = read_text_file(path),
                    message = message_of<Failure>(
                        [&] { write_seal(path, 512, 512 + 62 * seal_block_bytes, hashes); });
  EXPECT_THAT(message, HasSubstr("does not fit in a user block of 512"));
  EXPECT_EQ(read_text_file(path), before);
}

}  // namespace
}  // namespace trireme::io
