// SPDX-License-Identifier: Apache-2.0
//
// The account of a run for `trireme inspect`: where its time went, in seconds and in parts.
#include "account_report.hpp"

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
std::string steps_text(const Json& steps) {
  return "  " + counted(steps.get<std::int64_t>(), "step", "steps");
}

}  // namespace

std::string account_text(const Json& account) {
  const auto wall = account["wall_s"].get<double>();
  if (wall <= 0) return "";
  std::string text =
      fmt::format("  time: {} in {}, {} to {}, {:.4g} node-hours\n", format_seconds(wall),
                  counted(account["starts"].get<std::int64_t>(), "start", "starts"),
                  account["begin"].get<std::string>(), account["end"].get<std::string>(),
                  account["node_hours"].get<double>());
  for (const auto& [key, part] : account["parts"].items()) {
    const auto seconds = part["seconds"].get<double>();
    if (seconds < 5e-4 * wall) continue;
    const std::string steps = key == "train_s"      ? steps_text(account["steps"])
                              : key == "repeated_s" ? steps_text(account["repeated_steps"])
                                                    : "";
    text += fmt::format("    {:<24} {:>10} {:6.1f} %{}\n", part["label"].get<std::string>(),
                        format_short_seconds(seconds), 100 * seconds / wall, steps);
  }
  text += fmt::format("  goodput: scheduling {:.1f} %, runtime {:.1f} %",
                      100 * account["scheduling_goodput"].get<double>(),
                      100 * account["runtime_goodput"].get<double>());
  if (account["program_goodput"].is_number())
    text += fmt::format(", program {:.1f} %", 100 * account["program_goodput"].get<double>());
  text += "\n";
  const auto add_energy = [&](const char* key, const std::string& what) {
    if (account.value(key, Json()).is_null()) return;
    const Json& energy = account[key];
    text += fmt::format("  energy: {} {}, in {} of {}\n", what,
                        format_energy(energy["joules"].get<double>()),
                        energy["starts"].get<std::int64_t>(),
                        counted(account["starts"].get<std::int64_t>(), "start", "starts"));
  };
  add_energy("gpu_energy", "GPUs");
  if (const Json slurm = account.value("slurm_energy", Json()); !slurm.is_null())
    text += fmt::format("  energy: Slurm {}, of {} before the latest\n",
                        format_energy(slurm["joules"].get<double>()),
                        counted(slurm["starts"].get<std::int64_t>(), "job", "jobs"));
  add_energy("host_energy", fmt::format("hosts ({}, {})", account.value("host_energy_source", ""),
                                        account.value("host_energy_scope", "")));
  return text;
}

}  // namespace trireme::app
