// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/host_facts.hpp"

#include <filesystem>
#include <fstream>

#include <sys/resource.h>

#include <gtest/gtest.h>

#include "support/scratch.hpp"
#include "trireme/base/host.hpp"

namespace trireme {
namespace {

TEST(HostFacts, HaveTheLimitsOfTheProcess) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit low = before;
  low.rlim_cur = 77;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &low), 0);
  const HostFacts facts = examine_host();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(facts.open_files, 77);
  EXPECT_EQ(facts.name, host_name());
  EXPECT_GT(facts.memory_bytes, facts.available_memory_bytes);
  EXPECT_GT(facts.available_memory_bytes, std::int64_t{1} << 20);
  EXPECT_LE(host_memory_bytes(), facts.memory_bytes);
}

TEST(HostFacts, ListTheAllowedCores) {
  EXPECT_EQ(static_cast<int>(allowed_cores().size()), available_cores());
  EXPECT_GE(examine_host().cores, available_cores());
}

TEST(HostFacts, APhysicalCoreIsNamedByItsFirstThread) {
  const test::ScratchFolder root;
  const auto siblings = [&](int core, const std::string& text) {
    const std::string folder = root / ("cpu" + std::to_string(core) + "/topology");
    std::filesystem::create_directories(folder);
    std::ofstream(folder + "/thread_siblings_list") << text << "\n";
  };
  siblings(3, "3,67");
  siblings(67, "3,67");
  siblings(7, "6-7");
  EXPECT_EQ(physical_core_of(3, root.path()), 3);
  EXPECT_EQ(physical_core_of(67, root.path()), 3);
  EXPECT_EQ(physical_core_of(7, root.path()), 6);
  EXPECT_EQ(physical_core_of(9, root.path()), 9) << "without a file a core is physical";
}

TEST(HostFacts, TheSettingInBracketsIsSelected) {
  EXPECT_EQ(selected_word("always [madvise] never"), "madvise");
  EXPECT_EQ(selected_word("[always] madvise never"), "always");
  EXPECT_EQ(selected_word(""), "");
  EXPECT_EQ(selected_word("]["), "");
}

}  // namespace
}  // namespace trireme
