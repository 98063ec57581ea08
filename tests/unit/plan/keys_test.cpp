// SPDX-License-Identifier: Apache-2.0
//
// The page of the format names every key.
#include <fstream>
#include <set>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plan/machine/machine_tables.hpp"
#include "trireme/ops/op.hpp"
#include "trireme/optim/rule.hpp"

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

TEST(MachineKeys, TablesOfEfficiencyAreForOpsOfTheListOrClasses) {
  std::set<std::string> known{"memory_bound"};
  for (const ops::OpEntry& op : ops::op_list) {
    known.emplace(op.name);
    for (const char* form : {"pointwise_", "strided_"})
      if (op.kind == ops::ProductKind::convolution) known.insert(form + std::string(op.name));
  }
  for (const optim::UpdateRule* rule : optim::rules())
    for (const ops::UpdatePass& pass : {rule->direction, rule->step}) known.emplace(pass.op.name);
  for (const char* kind : {"product", "convolution", "attention"})
    for (const char* pass : {"_forward", "_backward"}) known.insert(std::string(kind) + pass);
  for (const std::string& name : efficiency_names())
    EXPECT_TRUE(known.contains(name.substr(name.find('.') + 1))) << name;
}

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
