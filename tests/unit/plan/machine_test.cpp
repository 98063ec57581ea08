// SPDX-License-Identifier: Apache-2.0
//
// Machine files: every mistake is refused with its line, and what is written reads back.
#include "trireme/plan/machine/machine.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/check.hpp"

namespace trireme::plan {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

/// The smallest valid machine file; every table begins with its origin.
const std::string origin = "source = \"a data sheet\"\ndate = \"2026-11\"\n";
std::string smallest_file() {
  std::string text = "[machine]\nname = \"small\"\ntested = false\n";
  text += "[device]\n" + origin + "kind = \"gpu\"\nunits = 4\n";
  text += "[peak]\n" + origin + "float32 = 1e12\n";
  text += "[memory]\n" + origin + "bytes = 1000\nbytes_per_s = 1e11\n";
  text += "[overhead]\n" + origin + "launch_seconds = 2e-6\n";
  text += "[node]\n" + origin + "devices = 8\n";
  for (const char* pass : {"forward", "backward"})
    for (const char* kind : {"product", "convolution", "attention"})
      text +=
          std::string("[efficiency.all.") + kind + "_" + pass + "]\n" + origin + "compute = 0.5\n";
  return text + "[efficiency.all.memory_bound]\n" + origin + "bandwidth = 0.8\n";
}

std::string error_of(const std::string& text) {
  try {
    parse_machine(text, "m.toml");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

/// Returns the text with the first `from` replaced.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(MachineFile, ReadsTheSmallestFile) {
  const Machine machine = parse_machine(smallest_file(), "m.toml");
  EXPECT_EQ(machine.name, "small");
  EXPECT_EQ(machine.device.kind, MachineKind::gpu);
  EXPECT_EQ(machine.node.devices, 8);
  EXPECT_EQ(machine.efficiency.at("all.product_forward").compute, 0.5);
  EXPECT_EQ(machine.efficiency.at("all.memory_bound").origin.date, "2026-11");
}

TEST(MachineFile, NamesTheNearestKnownKeyAndTheLine) {
  const std::string text = replaced(smallest_file(), "bytes_per_s = 1e11", "byte_per_s = 1e11");
  const std::string error = error_of(text);
  EXPECT_THAT(error, HasSubstr("m.toml:17:1: [memory] byte_per_s: unknown key, did you mean "
                               "\"bytes_per_s\"?"));
  EXPECT_THAT(error, HasSubstr("[memory] bytes_per_s: missing; give the memory bandwidth"));
  EXPECT_THAT(error_of(smallest_file() + "[efficiency.float32.linear_foward]\n"),
              HasSubstr("did you mean \"linear_forward\"?"));
}

TEST(MachineFile, NeedsTheSourceAndDateOfEachTable) {
  const std::string nowhere = replaced(smallest_file(), "source = \"a data sheet\"\n", "");
  EXPECT_THAT(error_of(nowhere), HasSubstr("[device] source: missing; name the document"));
  const std::string undated = smallest_file() + "[links.node]\nsource = \"x\"\n" +
                              "latency_seconds = 1e-6\nbytes_per_s = 1e9\n";
  EXPECT_THAT(error_of(undated), HasSubstr("[links.node] date: missing"));
  const std::string wrong = replaced(smallest_file(), "2026-11", "last week");
  EXPECT_THAT(error_of(wrong), HasSubstr("must be a date, as \"2026-11-25\""));
}

TEST(MachineFile, RefusesNumbersOutOfRangeAndListsThatDoNotFit) {
  EXPECT_THAT(error_of(replaced(smallest_file(), "float32 = 1e12", "float32 = 0")),
              HasSubstr("[peak] float32: 0 is out of range; must be more than 0"));
  const std::string grid = smallest_file() + "[efficiency.float32.linear_forward]\n" + origin +
                           "m = [1, 2]\nn = [1, 2]\nk = [1]\ncompute_grid = [1, 1, 1]\n";
  EXPECT_THAT(error_of(grid), HasSubstr("compute_grid: has 3 numbers; 2 m, 2 n and 1 k need 4"));
  const std::string order = replaced(grid, "m = [1, 2]", "m = [2, 1]");
  EXPECT_THAT(error_of(order), HasSubstr("1 must be more than 2, the number before it"));
  const std::string empty = smallest_file() + "[efficiency.all.copy]\n" + origin;
  EXPECT_THAT(error_of(empty), HasSubstr("[efficiency.all] copy: needs compute, bandwidth"));
}

TEST(MachineFile, ScalingIsAPartAboveZero) {
  EXPECT_EQ(parse_machine(smallest_file(), "m.toml").scaling.compute, 1);
  const std::string text = smallest_file() + "[scaling]\n" + origin;
  EXPECT_EQ(parse_machine(text + "compute = 0.75\n", "m.toml").scaling.compute, 0.75);
  EXPECT_THAT(error_of(text), HasSubstr("[scaling] compute: missing; give the part of the speed"));
  for (const char* wrong : {"compute = 0\n", "compute = 1e-300\n", "compute = 1.1\n"})
    EXPECT_THAT(error_of(text + wrong), HasSubstr("[scaling] compute: "));
  EXPECT_THAT(error_of(text + "computes = 0.5\n"), HasSubstr("did you mean \"compute\"?"));
}

TEST(MachineFile, NeedsTheTablesOfEveryPrediction) {
  const std::string text =
      replaced(smallest_file(), "[efficiency.all.memory_bound]", "[efficiency.all.copy]");
  EXPECT_THAT(error_of(text),
              HasSubstr("[efficiency.all] memory_bound: missing; a machine file needs"));
}

TEST(MachineFile, WrittenFilesAreReadBack) {
  Machine machine = parse_machine(smallest_file(), "m.toml");
  machine.scaling = {{"measured", "2026-11-25"}, 0.75};
  machine.network.origin = {"measured", "2026-11-25"};
  machine.network.latency_seconds = 1.25e-6;
  machine.network.bytes_per_s = 1e9;
  machine.network.message_bytes = {8, 1024};
  machine.network.message_bytes_per_s = {4e6, 3.7e8};
  machine.collectives["all_reduce"] = {
      {"measured", "2026-11-25"}, {2, 4}, {1000}, {1.0 / 3, 2.0 / 3}};
  Efficiency& grid = machine.efficiency["bfloat16.linear_forward"];
  grid.origin = {"measured", "2026-11-25"};
  grid.m = grid.k = {1};
  grid.n = {1, 2};
  grid.compute_grid = {0.1, 1.0 / 7};
  const std::string text = write_machine(machine);
  const Machine back = parse_machine(text, "back.toml");
  EXPECT_EQ(write_machine(back), text);
  EXPECT_EQ(back.efficiency.at("bfloat16.linear_forward").compute_grid,
            machine.efficiency.at("bfloat16.linear_forward").compute_grid);
  EXPECT_EQ(back.collectives.at("all_reduce").seconds,
            machine.collectives.at("all_reduce").seconds);
  EXPECT_EQ(back.network.message_bytes_per_s, machine.network.message_bytes_per_s);
  EXPECT_EQ(back.scaling.compute, 0.75);
  EXPECT_TRUE(back.node_link.origin.source.empty());
}

TEST(MachineFile, EveryBuiltInMachineIsReadByItsName) {
  EXPECT_FALSE(built_in_machines().empty());
  for (const BuiltInMachine& one : built_in_machines()) {
    const Machine machine = read_machine(std::string(one.name));
    EXPECT_EQ(machine.name, one.name);
    EXPECT_FALSE(machine.tested) << one.name;
  }
}

TEST(MachineFile, AnUnknownNameIsRefusedWithTheNearestOne) {
  EXPECT_THAT([&] { read_machine("h10"); },
              ThrowsMessage<InputError>(HasSubstr("did you mean h100?")));
  EXPECT_THROW(read_machine("./none.toml"), InputError);
}

}  // namespace
}  // namespace trireme::plan
