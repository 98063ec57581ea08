// SPDX-License-Identifier: Apache-2.0
//
// Reads machine files with the reader of decks, and writes them.
//
// Order of events in parse_machine():
// 1. The reader parses the text and visits the tables of machine_tables.cpp.
// 2. check_sizes() compares lists that belong together.
// 3. finish() throws all mistakes with their lines.
#include "trireme/plan/machine/machine.hpp"

#include <algorithm>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine_tables.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/keys/reader.hpp"
#include "trireme/keys/writer.hpp"

namespace trireme::plan {
namespace {

/// The tables without which no step can be predicted.
const std::set<std::string, std::less<>>& required_tables() {
  static const std::set<std::string, std::less<>> all{"device",
                                                      "peak",
                                                      "memory",
                                                      "overhead",
                                                      "node",
                                                      "efficiency.all.product_forward",
                                                      "efficiency.all.product_backward",
                                                      "efficiency.all.convolution_forward",
                                                      "efficiency.all.convolution_backward",
                                                      "efficiency.all.attention_forward",
                                                      "efficiency.all.attention_backward",
                                                      "efficiency.all.memory_bound"};
  return all;
}

void check_efficiency(keys::Reader& reader, const std::string& path, const Efficiency& e) {
  const std::size_t points = e.m.size() * e.n.size() * e.k.size();
  if (e.compute_grid.size() != points)
    reader.add_mistake(
        path + ".compute_grid",
        fmt::format("has {} numbers; {} m, {} n and {} k need {}", e.compute_grid.size(),
                    e.m.size(), e.n.size(), e.k.size(), points));
  if (e.bandwidth_curve.size() != e.bytes.size())
    reader.add_mistake(path + ".bandwidth_curve",
                       fmt::format("has {} numbers; must have one for each of the {} bytes",
                                   e.bandwidth_curve.size(), e.bytes.size()));
  if ((e.tile_m > 0) != (e.tile_n > 0))
    reader.add_mistake(path + (e.tile_m > 0 ? ".tile_m" : ".tile_n"),
                       "needs both tile_m and tile_n");
  if (e.compute == 0 && e.bandwidth == 0 && points == 0 && e.bytes.empty())
    reader.add_mistake(path, "needs compute, bandwidth, compute_grid or bandwidth_curve");
}

void check_sizes(keys::Reader& reader, const Machine& machine) {
  for (const auto& [path, link] :
       {std::pair("links.node", &machine.node_link), std::pair("links.network", &machine.network)})
    if (link->message_bytes.size() != link->message_bytes_per_s.size())
      reader.add_mistake(fmt::format("{}.message_bytes_per_s", path),
                         fmt::format("has {} numbers; must have one for each of the {} "
                                     "message_bytes",
                                     link->message_bytes_per_s.size(), link->message_bytes.size()));
  for (const auto& [name, c] : machine.collectives)
    if (c.seconds.size() != c.ranks.size() * c.bytes.size())
      reader.add_mistake(
          fmt::format("collectives.{}.seconds", name),
          fmt::format("has {} numbers; {} ranks and {} bytes need {}", c.seconds.size(),
                      c.ranks.size(), c.bytes.size(), c.ranks.size() * c.bytes.size()));
  for (const auto& [name, efficiency] : machine.efficiency)
    check_efficiency(reader, "efficiency." + name, efficiency);
}

}  // namespace

Machine parse_machine(const std::string& text, const std::string& file) {
  keys::Reader reader(text, file);
  Machine machine;
  for (const std::string& table : required_tables())
    if (!reader.is_set(table))
      reader.add_mistake(table, "missing; a machine file needs this table");
  visit(reader, machine, [&](const std::string& table) { return reader.is_set(table); });
  check_sizes(reader, machine);
  reader.finish();
  return machine;
}

Machine read_machine(const std::string& name_or_file) {
  if (name_or_file.find('/') != std::string::npos || name_or_file.ends_with(".toml"))
    return parse_machine(keys::read_file(name_or_file), name_or_file);
  std::vector<std::string> names;
  for (const BuiltInMachine& machine : built_in_machines()) {
    if (machine.name == name_or_file)
      return parse_machine(std::string(machine.text), fmt::format("{}.toml", machine.name));
    names.emplace_back(machine.name);
  }
  const std::string guess = nearest(name_or_file, names);
  throw InputError(fmt::format(
      "machine {}: not known{}; machines are {}; a machine file is given by its path, as in "
      "./{}.toml",
      printable(name_or_file, 80), guess.empty() ? "" : fmt::format(", did you mean {}?", guess),
      fmt::join(names, ", "), printable(name_or_file, 80)));
}

std::string write_machine(const Machine& machine) {
  Machine copy = machine;
  const auto has_table = [&](const std::string& path) {
    constexpr std::string_view collectives = "collectives.", efficiency = "efficiency.";
    if (path.starts_with(collectives))
      return copy.collectives.contains(path.substr(collectives.size()));
    if (path.starts_with(efficiency))
      return copy.efficiency.contains(path.substr(efficiency.size()));
    return true;
  };
  return keys::write_tables([&](keys::Visitor& v) { visit(v, copy, has_table); });
}

}  // namespace trireme::plan
