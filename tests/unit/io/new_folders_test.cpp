// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/new_folders.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace trireme::io {
namespace {

namespace fs = std::filesystem;

TEST(NewFolders, RemovesEmptyFoldersAtItsEnd) {
  const test::ScratchFolder folder;
  fs::create_directories(folder / "old");
  {
    NewFolders folders;
    EXPECT_FALSE(folders.create(folder / "old/a/b/c/"));
    EXPECT_TRUE(fs::is_directory(folder / "old/a/b/c"));
    std::ofstream(folder / "old/a/file") << "kept";
  }
  EXPECT_TRUE(fs::exists(folder / "old/a/file"));
  EXPECT_FALSE(fs::exists(folder / "old/a/b"));
}

TEST(NewFolders, KeepsFoldersThatItDidNotMake) {
  const test::ScratchFolder folder;
  fs::create_directories(folder / "empty");
  fs::create_symlink("nowhere", folder / "link");
  {
    NewFolders folders;
    EXPECT_FALSE(folders.create(folder / "empty"));
    EXPECT_EQ(folders.create(folder / "link"), std::errc::not_a_directory);
    EXPECT_EQ(folders.create(folder / "link/below"), std::errc::not_a_directory);
    std::error_code error;
    EXPECT_FALSE(folders.create_one(folder / "empty", error));
    EXPECT_FALSE(error);
  }
  EXPECT_TRUE(fs::exists(folder / "empty"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
}

TEST(NewFolders, KeepsLinksAndFilesThatReplaceItsFolders) {
  const test::ScratchFolder folder;
  {
    NewFolders folders;
    EXPECT_FALSE(folders.create(folder / "moved"));
    EXPECT_FALSE(folders.create(folder / "file"));
    fs::rename(folder / "moved", folder / "elsewhere");
    fs::create_directory_symlink("elsewhere", folder / "moved");
    fs::remove(folder / "file");
    std::ofstream(folder / "file") << "kept";
  }
  EXPECT_TRUE(fs::is_symlink(folder / "moved"));
  EXPECT_TRUE(fs::is_directory(folder / "elsewhere"));
  EXPECT_TRUE(fs::is_regular_file(folder / "file"));
}

TEST(NewFolders, KeepsAllAfterKeep) {
  const test::ScratchFolder folder;
  {
    NewFolders folders;
    EXPECT_FALSE(folders.create(folder / "a/b"));
    folders.keep();
  }
  EXPECT_TRUE(fs::is_directory(folder / "a/b"));
}

}  // namespace
}  // namespace trireme::io
