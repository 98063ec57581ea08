// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/host.hpp"

#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <sched.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace trireme {
namespace {

TEST(Cores, FollowTheAffinityMask) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_EQ(available_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(available_cores(), 1);
  EXPECT_EQ(core_list(), std::to_string(first));
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);
}

TEST(Memory, IsResidentOnceItIsWritten) {
  constexpr std::size_t size = std::size_t{64} << 20;
  const std::int64_t before = resident_bytes();
  EXPECT_GT(before, std::int64_t{1} << 20);
  const std::vector<char> written(size, 1);
  // The kernel updates its counters in batches of some pages for each thread.
  constexpr std::int64_t uncounted = 4 << 20;
  EXPECT_GT(resident_bytes(), before + static_cast<std::int64_t>(size) - uncounted);
}

TEST(Memory, IsLimitedByTheControlGroupsOfTheProcess) {
  namespace fs = std::filesystem;
  const std::string root =
      fs::temp_directory_path() / ("trireme_groups_" + std::to_string(::getpid()));
  const auto limit = [&](const std::string& group, const std::string& file,
                         const std::string& text) {
    fs::create_directories(root + group);
    std::ofstream(root + group + "/" + file) << text << "\n";
  };
  constexpr std::int64_t none = std::numeric_limits<std::int64_t>::max();
  limit("/job/step", "memory.max", "max");
  EXPECT_EQ(memory_limit_of_groups("0::/job/step\n", root), none);
  limit("/job", "memory.max", "5000");
  EXPECT_EQ(memory_limit_of_groups("0::/job/step\n", root), 5000);
  EXPECT_EQ(memory_limit_of_groups("0::/job/step/task\n", root), 5000);
  EXPECT_EQ(memory_limit_of_groups("0::/\n", root), none);
  // Version 1, and both versions.
  limit("/memory/slurm/job", "memory.limit_in_bytes", "7000");
  const std::string both = "9:cpu,cpuacct:/a\n4:memory:/slurm/job\n0::/job/step\n";
  EXPECT_EQ(memory_limit_of_groups("4:memory:/slurm/job\n", root), 7000);
  EXPECT_EQ(memory_limit_of_groups(both, root), 5000);
  EXPECT_EQ(memory_limit_of_groups("no group\n", root), none);
  fs::remove_all(root);
  EXPECT_GT(host_memory_bytes(), std::int64_t{64} << 20);
}

}  // namespace
}  // namespace trireme
