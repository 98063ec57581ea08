// SPDX-License-Identifier: Apache-2.0
//
// The file of library algorithms, at 1 and 3 ranks:
// - a start finds the algorithms of earlier starts, at any number of ranks;
// - a damaged or unwritable file costs one log line and nothing else;
// - runs share a file, and lose none of its lines when they write it at the same time.

#include "train/run/algorithm_file.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "support/mpi.hpp"
#include "trireme/io/run_names.hpp"

namespace trireme::train {
namespace {

using testing::HasSubstr;

using ops::AlgorithmTable;

const comm::Communicator& world() { return test_environment().world(); }

class AlgorithmFiles : public testing::Test {
 protected:
  AlgorithmFiles()
      : folder(world().broadcast((std::filesystem::temp_directory_path() /
                                  ("trireme_algorithms_" + std::to_string(getpid())))
                                     .string(),
                                 0)) {
    if (lead) std::filesystem::create_directories(folder);
    if (lead) log.open_file(log_path());
    world().barrier();
  }
  ~AlgorithmFiles() override {
    world().barrier();
    if (lead) std::filesystem::remove_all(folder);
  }
  std::string path() const { return folder + "/" + io::run_names::algorithms; }
  std::string log_path() const { return folder + "/log.txt"; }
  /// Returns the log so far.
  std::string log_text_so_far() {
    log.flush();
    std::stringstream text;
    text << std::ifstream(log_path()).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { write(path(), text); }
  void write(const std::string& to, const std::string& text) const {
    if (lead) std::ofstream(to, std::ios::trunc) << text;
    world().barrier();
  }
  /// Returns the table that a file holds; empty if there is none. Throws if it is damaged.
  static AlgorithmTable table_of(const std::string& from) {
    if (!std::filesystem::exists(from)) return {};
    std::stringstream text;
    text << std::ifstream(from).rdbuf();
    return AlgorithmTable::parse(text.str());
  }
  /// Makes a folder for a run.
  std::string run_folder(const std::string& name) const {
    if (lead) std::filesystem::create_directories(folder + "/" + name);
    world().barrier();
    return folder + "/" + name;
  }
  std::string shared_path() const { return folder + "/shared.txt"; }
  /// Returns how often the log holds a text.
  int times_logged(const std::string& words) {
    const std::string text = log_text_so_far();
    int count = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++count;
    return count;
  }

  const bool lead = world().rank() == 0;
  const std::string folder;
  Log log{lead};
};

TEST_F(AlgorithmFiles, MissingLibraryAlgorithmsAreLoggedOnceAStart) {
  for (int start = 1; start <= 2; ++start) {
    AlgorithmTable found;
    AlgorithmFile file(world(), folder, "", found, log);
    found.set("product", "fast");
    if (world().rank() == world().size() - 1) {
      found.set("attention", AlgorithmTable::own_kernel);
      found.set("long attention", std::string(AlgorithmTable::own_kernel) + ": too large");
    }
    file.update();
    found.set("later", "fast");
    file.update();
    if (lead) {
      EXPECT_EQ(times_logged("own kernel is used: attention (the library has no algorithm)"),
                start);
      EXPECT_EQ(times_logged("own kernel is used: long attention (too large)"), start);
    }
    world().barrier();
  }
}

TEST_F(AlgorithmFiles, TheNextStartKnowsTheResultsOfAllRanks) {
  AlgorithmTable found;
  AlgorithmFile file(world(), folder, "", found, log);
  EXPECT_EQ(found.size(), 0u);
  file.update();
  // Nothing was found, so nothing is written.
  EXPECT_FALSE(lead && std::filesystem::exists(path()));
  found.set("of all", "that of rank " + std::to_string(world().rank()));
  found.set("of rank " + std::to_string(world().rank()), "its own");
  file.update();
  world().barrier();

  AlgorithmTable next;
  AlgorithmFile next_file(world(), folder, "", next, log);
  EXPECT_EQ(next.size(), static_cast<std::size_t>(world().size() + 1));
  for (int rank = 0; rank < world().size(); ++rank) {
    const std::string* own = next.find("of rank " + std::to_string(rank));
    ASSERT_NE(own, nullptr) << rank;
    EXPECT_EQ(*own, "its own");
  }
  ASSERT_NE(next.find("of all"), nullptr);
  EXPECT_EQ(*next.find("of all"), "that of rank 0");
  // No rank has found more, so the file is not written again, although the algorithms of this start
  // differ.
  if (lead) std::filesystem::remove(path());
  world().barrier();
  next_file.update();
  file.update();
  EXPECT_FALSE(lead && std::filesystem::exists(path()));
  // A new algorithm of one rank is enough.
  if (world().rank() == world().size() - 1) next.set("later", "the last rank's");
  next_file.update();
  if (lead) {
    std::stringstream text;
    text << std::ifstream(path()).rdbuf();
    AlgorithmTable expected = next;
    expected.set("later", "the last rank's");
    EXPECT_EQ(AlgorithmTable::parse(text.str()), expected);
    EXPECT_EQ(log_text_so_far(), "");
  }
}

TEST_F(AlgorithmFiles, ADamagedOrUntrustedFileIsIgnoredWithOneLine) {
  AlgorithmTable one;
  one.set("a problem", "its algorithm");
  std::string damaged = one.to_text();
  damaged[damaged.size() - 3] ^= 1;
  int lines = 0;
  for (const std::string& text : {damaged, std::string("{\"json\": true}\n"), std::string(),
                                  one.to_text().substr(0, one.to_text().size() - 1)}) {
    write(text);
    AlgorithmTable known;
    AlgorithmFile file(world(), folder, "", known, log);
    EXPECT_EQ(known.size(), 0u);
    if (lead) {
      ++lines;
      const std::string log_text = log_text_so_far();
      EXPECT_EQ(std::count(log_text.begin(), log_text.end(), '\n'), lines) << log_text;
      EXPECT_THAT(log_text, HasSubstr(path()));
    }
    known.set("a problem", "found again");
    file.update();
    world().barrier();
    AlgorithmTable next;
    const AlgorithmFile right(world(), folder, "", next, log);
    ASSERT_NE(next.find("a problem"), nullptr);
    EXPECT_EQ(*next.find("a problem"), "found again");
  }
}

TEST_F(AlgorithmFiles, AFileThatCannotBeWrittenIsNoReasonToStop) {
  AlgorithmTable known;
  AlgorithmFile file(world(), folder + "/missing", "", known, log);
  known.set("a problem", "its algorithm");
  EXPECT_NO_THROW(file.update());
  if (lead) {
    EXPECT_THAT(log_text_so_far(), HasSubstr("searches the fastest algorithms again"));
  }
}

TEST_F(AlgorithmFiles, ANewRunFindsTheAlgorithmsOfOtherRuns) {
  AlgorithmTable first;
  AlgorithmFile file(world(), run_folder("first"), shared_path(), first, log);
  first.set("of rank " + std::to_string(world().rank()), "its own");
  first.set("attention", AlgorithmTable::own_kernel);
  file.update();

  AlgorithmTable second;
  AlgorithmFile other(world(), run_folder("second"), shared_path(), second, log);
  EXPECT_EQ(second.size(), static_cast<std::size_t>(world().size()));
  for (int rank = 0; rank < world().size(); ++rank)
    EXPECT_NE(second.find("of rank " + std::to_string(rank)), nullptr) << rank;
  // A restart of the second run needs no shared file.
  other.update();
  if (lead) {
    EXPECT_EQ(table_of(folder + "/second/" + io::run_names::algorithms), second);
    EXPECT_EQ(times_logged(shared_path() + " (TRIREME_ALGORITHMS): the algorithms of 0 problems"),
              1);
    EXPECT_EQ(times_logged("problems were added") + times_logged("problem were added"), 1);
  }
  world().barrier();
}

TEST_F(AlgorithmFiles, ARestartKeepsItsOwnAlgorithms) {
  AlgorithmTable shared;
  shared.set("both", "of others");
  shared.set("others", "of others");
  write(shared_path(), shared.to_text());
  AlgorithmTable own;
  own.set("both", "of this run");
  write(own.to_text());
  AlgorithmTable known;
  AlgorithmFile file(world(), folder, shared_path(), known, log);
  ASSERT_NE(known.find("both"), nullptr);
  EXPECT_EQ(*known.find("both"), "of this run");
  EXPECT_EQ(*known.find("others"), "of others");
  known.set("new", "of this run");
  file.update();
  if (lead) {
    shared.set("new", "of this run");
    EXPECT_EQ(table_of(shared_path()), shared);
    EXPECT_EQ(table_of(path()), known);
  }
  world().barrier();
}

TEST_F(AlgorithmFiles, RunsThatWriteAtTheSameTimeLoseNoLine) {
  // Each rank is a run of its own here.
  constexpr int updates = 20;
  const int rank = world().rank();
  const std::string own_folder = folder + "/run" + std::to_string(rank);
  std::filesystem::create_directories(own_folder);
  AlgorithmTable known;
  Log own_log;
  own_log.open_file(own_folder + "/log.txt");
  AlgorithmFile file(comm::Communicator(), own_folder, shared_path(), known, own_log);
  world().barrier();
  for (int i = 0; i < updates; ++i) {
    known.set("run " + std::to_string(rank) + " problem " + std::to_string(i), "fast");
    file.update();
  }
  // A file that was locked for too long is written at a later call.
  for (int i = 0; i < 3; ++i) file.update();
  world().barrier();
  const AlgorithmTable all = table_of(shared_path());
  EXPECT_EQ(all.size(), static_cast<std::size_t>(world().size() * updates));
  for (int i = 0; i < updates; ++i)
    EXPECT_NE(all.find("run " + std::to_string(rank) + " problem " + std::to_string(i)), nullptr);
  world().barrier();
}

TEST_F(AlgorithmFiles, ADamagedLineOfASharedFileIsReplaced) {
  AlgorithmTable two;
  two.set("a problem", "its algorithm");
  two.set("whole", "its algorithm");
  std::string damaged = two.to_text();
  damaged[damaged.find("a problem")] ^= 1;
  write(shared_path(), damaged);
  AlgorithmTable known;
  AlgorithmFile file(world(), folder, shared_path(), known, log);
  EXPECT_EQ(known.size(), 1u);
  EXPECT_NE(known.find("whole"), nullptr);
  known.set("a problem", "found again");
  file.update();
  if (lead) {
    EXPECT_EQ(table_of(shared_path()), known);
  }
  world().barrier();
}

TEST_F(AlgorithmFiles, AnotherTextIsNotReplaced) {
  int files = 0;
  for (const std::string& text :
       {std::string("my thesis\n"), std::string("trireme-algorithms 2\nx\n"),
        std::string("\0\1", 2), std::string("trireme-algorithms 1")}) {
    write(shared_path(), text);
    AlgorithmTable known;
    AlgorithmFile file(world(), folder, shared_path(), known, log);
    known.set("a problem", "its algorithm");
    EXPECT_NO_THROW(file.update());
    if (lead) {
      std::stringstream kept;
      kept << std::ifstream(shared_path()).rdbuf();
      EXPECT_EQ(kept.str(), text);
      EXPECT_EQ(times_logged("was not written"), ++files) << log_text_so_far();
    }
    world().barrier();
  }
}

TEST_F(AlgorithmFiles, ASharedFileKeepsItsLinkAndItsPermissions) {
  namespace fs = std::filesystem;
  const std::string link = folder + "/link.txt";
  if (lead) fs::create_symlink("shared.txt", link);  // which does not exist yet
  world().barrier();
  const fs::perms group = fs::perms::owner_read | fs::perms::owner_write | fs::perms::group_read |
                          fs::perms::group_write;
  for (const std::string problem : {"one", "two"}) {
    AlgorithmTable known;
    AlgorithmFile file(world(), folder, link, known, log);
    known.set(problem, "its algorithm");
    file.update();
    if (lead) {
      EXPECT_TRUE(fs::is_symlink(link));
      EXPECT_NE(table_of(shared_path()).find(problem), nullptr);
      if (problem == "two") {
        EXPECT_EQ(fs::status(shared_path()).permissions(), group);
      }
      fs::permissions(shared_path(), group);
    }
    world().barrier();
  }
}

TEST_F(AlgorithmFiles, ASharedFileThatCannotBeWrittenIsLoggedOnce) {
  const std::string wrong = folder + "/missing/shared.txt", device = "/dev/null";
  for (const std::string& path : {wrong, folder, device}) {
    AlgorithmTable known;
    AlgorithmFile file(world(), folder, path, known, log);
    known.set("a problem", "its algorithm");
    EXPECT_NO_THROW(file.update());
    known.set("another", "its algorithm");
    EXPECT_NO_THROW(file.update());
    if (lead) {
      EXPECT_EQ(times_logged(path + " (TRIREME_ALGORITHMS) was not written"), 1)
          << log_text_so_far();
    }
    world().barrier();
  }
  EXPECT_FALSE(std::filesystem::is_regular_file(device));
  // It is written as soon as that is possible, though nothing is new.
  AlgorithmTable known;
  AlgorithmFile file(world(), folder, wrong, known, log);
  known.set("a third", "its algorithm");
  file.update();
  if (lead) std::filesystem::create_directories(folder + "/missing");
  world().barrier();
  file.update();
  if (lead) {
    EXPECT_EQ(table_of(wrong), known);
  }
  world().barrier();
}

}  // namespace
}  // namespace trireme::train
