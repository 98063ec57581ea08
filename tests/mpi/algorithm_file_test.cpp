// The file of library algorithms, at 1 and 3 ranks:
// - a start finds the algorithms of earlier starts, at any number of ranks;
// - a damaged or unwritable file costs one log line and nothing else.

#include "trireme/train/algorithm_file.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

#include "support/mpi.hpp"

namespace trireme::train {
namespace {

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
  std::string path() const { return folder + "/" + AlgorithmFile::name; }
  std::string log_path() const { return folder + "/log.txt"; }
  /// Returns the log so far.
  std::string log_text_so_far() {
    log.flush();
    std::stringstream text;
    text << std::ifstream(log_path()).rdbuf();
    return text.str();
  }
  void write(const std::string& text) const {
    if (lead) std::ofstream(path(), std::ios::trunc) << text;
    world().barrier();
  }

  const bool lead = world().rank() == 0;
  const std::string folder;
  Log log{lead};
};

TEST_F(AlgorithmFiles, MissingLibraryAlgorithmsAreLoggedOnceAStart) {
  const std::string words = "own kernel is used: attention";
  const auto times = [&] {
    const std::string text = log_text_so_far();
    int count = 0;
    for (std::size_t at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++count;
    return count;
  };
  for (int start = 1; start <= 2; ++start) {
    AlgorithmTable found;
    AlgorithmFile file(world(), folder, found, log);
    found.set("product", "fast");
    if (world().rank() == world().size() - 1) found.set("attention", AlgorithmTable::own_kernel);
    file.update();
    found.set("later", "fast");
    file.update();
    if (lead) {
      EXPECT_EQ(times(), start);
    }
    world().barrier();
  }
}

TEST_F(AlgorithmFiles, TheNextStartKnowsWhatAllRanksFound) {
  AlgorithmTable found;
  AlgorithmFile file(world(), folder, found, log);
  EXPECT_EQ(found.size(), 0u);
  file.update();
  // Nothing was found, so nothing is written.
  EXPECT_FALSE(lead && std::filesystem::exists(path()));
  found.set("of all", "that of rank " + std::to_string(world().rank()));
  found.set("of rank " + std::to_string(world().rank()), "its own");
  file.update();
  world().barrier();

  AlgorithmTable next;
  AlgorithmFile next_file(world(), folder, next, log);
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
    AlgorithmFile file(world(), folder, known, log);
    EXPECT_EQ(known.size(), 0u);
    if (lead) {
      ++lines;
      const std::string log_text = log_text_so_far();
      EXPECT_EQ(std::count(log_text.begin(), log_text.end(), '\n'), lines) << log_text;
      EXPECT_NE(log_text.find(path()), std::string::npos) << log_text;
    }
    known.set("a problem", "found again");
    file.update();
    world().barrier();
    AlgorithmTable next;
    const AlgorithmFile right(world(), folder, next, log);
    ASSERT_NE(next.find("a problem"), nullptr);
    EXPECT_EQ(*next.find("a problem"), "found again");
  }
}

TEST_F(AlgorithmFiles, AFileThatCannotBeWrittenIsNoReasonToStop) {
  AlgorithmTable known;
  AlgorithmFile file(world(), folder + "/missing", known, log);
  known.set("a problem", "its algorithm");
  EXPECT_NO_THROW(file.update());
  EXPECT_TRUE(!lead ||
              log_text_so_far().find("searches the fastest algorithms again") != std::string::npos)
      << log_text_so_far();
}

}  // namespace
}  // namespace trireme::train
