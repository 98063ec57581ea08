// SPDX-License-Identifier: Apache-2.0
//
// The page of the format names every key.
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "machine_tables.hpp"

namespace trireme::plan {
namespace {

using testing::HasSubstr;

/// Collects the names of all keys.
class Collector final : public keys::Visitor {
 public:
  void table(const char*) override {}
  void field(const keys::Key& key, const keys::Field&) override { names.insert(key.name); }
  std::set<std::string> names;
};

TEST(MachineKeys, ThePageOfTheFormatNamesEveryKey) {
  std::ifstream file(TRIREME_DOCS "/reference/machine_files.md");
  std::stringstream page;
  page << file.rdbuf();
  Collector collector;
  Machine machine;
  visit(collector, machine, [](const std::string&) { return true; });
  EXPECT_GT(collector.names.size(), 40u);
  for (const std::string& name : collector.names)
    EXPECT_THAT(page.str(), HasSubstr("`" + name + "`")) << name;
}

}  // namespace
}  // namespace trireme::plan
