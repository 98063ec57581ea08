// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/folder_facts.hpp"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "support/stand_in_programs.hpp"

namespace trireme::io {
namespace {

using testing::HasSubstr;

TEST(FolderFacts, AFolderThatCanBeUsed) {
  const test::ScratchFolder folder;
  const FolderFacts facts = examine_folder(folder.path(), 1 << 20);
  EXPECT_EQ(facts.error + facts.write_error + facts.lock_error + facts.hdf5_error, "");
  EXPECT_EQ(facts.path, std::filesystem::canonical(folder.path()).string());
  EXPECT_FALSE(facts.file_system.empty());
  EXPECT_GT(facts.free_bytes, 0);
  EXPECT_GT(facts.write_seconds.value_or(0), 0);
  EXPECT_GT(facts.read_seconds.value_or(0), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path())) << "all files are removed";
  EXPECT_FALSE(examine_folder(folder.path(), 0).write_seconds) << "no test of speed";
}

TEST(FolderFacts, AFolderThatIsMissingOrAFile) {
  const test::ScratchFolder folder;
  const FolderFacts missing = examine_folder(folder / "none", 0);
  EXPECT_TRUE(missing.is_missing);
  EXPECT_THAT(missing.error, HasSubstr("No such file"));
  std::ofstream(folder / "file") << "text";
  const FolderFacts file = examine_folder(folder / "file", 0);
  EXPECT_TRUE(file.is_missing);
  EXPECT_EQ(file.error, "is not a folder");
}

TEST(FolderFacts, FileSystemsHaveNames) {
  EXPECT_EQ(file_system_name(0x0BD00BD0), "lustre");
  EXPECT_EQ(file_system_name(0x6969), "nfs");
  EXPECT_EQ(file_system_name(0x1234567), "0x1234567");
}

TEST(FolderFacts, LustreReportsItsStripes) {
  const test::StandInPrograms programs;
  programs.add("lfs", "[ \"$*\" = \"getstripe -d -c /a 'folder\" ] && echo 4");
  EXPECT_EQ(lustre_stripes("/a 'folder"), 4);
  EXPECT_EQ(lustre_stripes("/another"), std::nullopt);
  programs.add("lfs", "echo -1");
  EXPECT_EQ(lustre_stripes("/all"), -1);
}

TEST(FolderFacts, AMarkerAppears) {
  const test::ScratchFolder folder;
  const std::string path = create_marker(folder.path());
  ASSERT_FALSE(path.empty());
  EXPECT_TRUE(appears(path, 0));
  std::filesystem::remove(path);
  EXPECT_FALSE(appears(path, 0.01));
  EXPECT_EQ(create_marker(folder / "none"), "");
}

}  // namespace
}  // namespace trireme::io
