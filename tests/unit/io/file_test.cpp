// SPDX-License-Identifier: Apache-2.0
//
// Files, atomic replacement and hashes: whose error it is, and the state of the folder afterward.

#include "trireme/io/file.hpp"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <vector>

#include <sys/stat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/check.hpp"
#include "trireme/io/hash.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(File, ThreadsWriteAndReadTheirOwnPlaces) {
  const test::ScratchFolder folder;
  const File file(folder / "data", File::Mode::create);
  constexpr std::int64_t part = 10'007;
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      const std::string bytes(part, static_cast<char>('a' + i));
      file.write_at((3 - i) * part, bytes.data(), part);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(file.size(), 4 * part);
  std::string all(4 * part, ' ');
  file.read_at(0, all.data(), 4 * part);
  EXPECT_EQ(all, std::string(part, 'd') + std::string(part, 'c') + std::string(part, 'b') +
                     std::string(part, 'a'));
}

TEST(File, AFileThatEndsTooSoonIsTheUsersFileAndNamed) {
  const test::ScratchFolder folder;
  replace_file(folder / "short", "12345");
  const File file(folder / "short", File::Mode::read);
  char bytes[8];
  EXPECT_THAT([&] { file.read_at(2, bytes, 8); },
              ThrowsMessage<InputError>(HasSubstr("short: ends at byte 5")));
  EXPECT_THAT([&] { File(folder / "none", File::Mode::read); },
              ThrowsMessage<InputError>(HasSubstr(folder / "none")));
  EXPECT_THAT([&] { File(folder / "none/file", File::Mode::create); },
              ThrowsMessage<InputError>(HasSubstr("cannot be created")));
  EXPECT_THAT([&] { File(folder / std::string(300, 'n'), File::Mode::create); },
              ThrowsMessage<InputError>(HasSubstr("cannot be created")));
  EXPECT_THAT([&] { rename_durably(folder / "none", folder / "other"); },
              ThrowsMessage<InputError>(HasSubstr(std::strerror(ENOENT))));
  EXPECT_THAT([&] { read_text_file(folder.path()); },
              ThrowsMessage<InputError>(HasSubstr("folder")));
  EXPECT_THAT([&] { read_text_file(folder / "short", 4); },
              ThrowsMessage<InputError>(HasSubstr("5 bytes")));
}

TEST(File, ANewFileReplacesNothing) {
  const test::ScratchFolder folder;
  replace_file(folder / "there", "12345");
  std::filesystem::create_symlink("none", folder / "link");
  for (const char* name : {"there", "link"})
    EXPECT_THAT([&] { File(folder / name, File::Mode::create_new); },
                ThrowsMessage<InputError>(HasSubstr(
                    std::string(name) + ": cannot be created: " + std::strerror(EEXIST))));
  EXPECT_EQ(read_text_file(folder / "there"), "12345");
  EXPECT_FALSE(std::filesystem::exists(folder / "none"));
  const File made(folder / "new", File::Mode::create_new);
  made.write_at(0, "1", 1);
  EXPECT_EQ(made.size(), 1);
}

TEST(File, OnlyAFileIsRead) {
  const test::ScratchFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT([&] { File(folder / "pipe", File::Mode::read); },
              ThrowsMessage<InputError>(HasSubstr("pipe")));  // does not wait for a writer
  EXPECT_THAT([&] { File(folder.path(), File::Mode::read); },
              ThrowsMessage<InputError>(HasSubstr("is a folder")));
}

TEST(File, ReplacingLeavesTheNewTextAndNothingElse) {
  const test::ScratchFolder folder;
  replace_file(folder / "text", "old and longer");
  replace_file(folder / "text", "new");
  EXPECT_EQ(read_text_file(folder / "text"), "new");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
  // If the rename fails, no temporary file remains.
  std::filesystem::create_directories(folder / "taken/inner");
  EXPECT_THROW(replace_file(folder / "taken", "x"), InputError);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(File, AStagedFileTakesItsNameAtCommitOrIsRemoved) {
  const test::ScratchFolder folder;
  const auto files = [&] {
    return std::distance(std::filesystem::directory_iterator(folder.path()), {});
  };
  replace_file(folder / "data", "old");
  replace_file(folder / "data.tmp", "left over from a killed process");
  {
    StagedFile staged(folder / "data");
    EXPECT_EQ(staged.temporary(), folder / "data.tmp");
    EXPECT_FALSE(std::filesystem::exists(staged.temporary()));
    File(staged.temporary(), File::Mode::create).write_at(0, "half", 4);
    EXPECT_EQ(read_text_file(folder / "data"), "old");
  }
  EXPECT_EQ(read_text_file(folder / "data"), "old");
  EXPECT_EQ(files(), 1);
  {
    StagedFile staged(folder / "data");
    File(staged.temporary(), File::Mode::create).write_at(0, "whole", 5);
    staged.commit();
  }
  EXPECT_EQ(read_text_file(folder / "data"), "whole");
  EXPECT_EQ(files(), 1);
  StagedFile nothing(folder / "other");
  EXPECT_THROW(nothing.commit(), InputError);  // no temporary file was written
}

TEST(File, TheDiskSaysItsRoom) {
  const test::ScratchFolder folder;
  EXPECT_GT(free_bytes(folder.path()), 0);
  EXPECT_THROW(free_bytes(folder / "none"), Failure);
}

TEST(Hash, IsXxh3AndDoesNotDependOnTheParts) {
  EXPECT_EQ(xxh3("", 0),
            // XXH3_64bits of no bytes with seed 0, from doc/xxhash_spec.md of xxHash.
            0x2D06800538D394C2ull);
  std::string bytes(5000, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 131 >> 3);
  Xxh3 hash;
  for (std::size_t begin = 0; begin < bytes.size(); begin += 617)
    hash.update(bytes.data() + begin, std::min<std::size_t>(617, bytes.size() - begin));
  EXPECT_EQ(hash.digest(), xxh3(bytes.data(), bytes.size()));
  hash.reset();
  EXPECT_EQ(hash.digest(), xxh3("", 0));
}

}  // namespace
}  // namespace trireme::io
