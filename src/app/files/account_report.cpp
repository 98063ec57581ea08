// SPDX-License-Identifier: Apache-2.0
//
// The account of a run for `trireme inspect`: where its time went, in seconds and in parts.
#include "account_report.hpp"

#include <fmt/format.h>

#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
std::string steps_text(const Json& steps) {
  return "  " + counted(steps.get<std::int64_t>(), "step", "steps");
}

}  // namespace

Json to_json(const monitor::Account& account) {
  Json parts = Json::object();
  for (const monitor::Account::Part& part : account.all_parts())
    parts[part.key] = {{"label", part.label}, {"seconds", part.seconds}};
  return {{"starts", account.starts},
          {"begin", utc_timestamp(account.begin)},
          {"end", utc_timestamp(account.end)},
          {"wall_s", account.wall()},
          {"node_hours", account.node_seconds / 3600},
          {"steps", account.steps},
          {"repeated_steps", account.repeated_steps},
          {"parts", std::move(parts)},
          {"scheduling_goodput", account.scheduling_goodput()},
          {"runtime_goodput", account.runtime_goodput()},
          {"program_goodput", account.mfu ? Json(*account.mfu) : Json()}};
}

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
  return text + "\n";
}

}  // namespace trireme::app
