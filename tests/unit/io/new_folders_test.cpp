#include "trireme/io/new_folders.hpp"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "support/scratch.hpp"

namespace trireme::io {
namespace {

namespace fs = std::filesystem;

TEST(NewFolders, RemovesWhatIsEmptyAtItsEnd) {
  const test::ScratchFolder folder;
  fs::create_directories(folder / "old");
  {
    const NewFolders new_folders(folder / "old/a/b/c");
    fs::create_directories(folder / "old/a/b/c");
    std::ofstream(folder / "old/a/file") << "kept";
  }
  EXPECT_TRUE(fs::exists(folder / "old/a/file"));
  EXPECT_FALSE(fs::exists(folder / "old/a/b"));
}

TEST(NewFolders, KeepsFoldersAndLinksOfTheUser) {
  const test::ScratchFolder folder;
  fs::create_directories(folder / "empty");
  fs::create_symlink("nowhere", folder / "link");
  for (const char* name : {"empty", "link", "link/below"}) const NewFolders made(folder / name);
  EXPECT_TRUE(fs::exists(folder / "empty"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
}

}  // namespace
}  // namespace trireme::io
