// SPDX-License-Identifier: Apache-2.0
//
// The texts of `trireme watch`: a view for terminals, and a line for logs.
#include "watch_text.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

/// Returns the columns of a terminal that a character takes: two for the wide ones of East Asia and
/// for pictographs (Unicode Standard Annex 11).
std::size_t columns_of(char32_t character) {
  constexpr std::pair<char32_t, char32_t> wide[] = {
      {0x1100, 0x115F}, {0x2E80, 0xA4CF}, {0xAC00, 0xD7A3},   {0xF900, 0xFAFF},
      {0xFE30, 0xFE6F}, {0xFF00, 0xFF60}, {0x1F300, 0x1FAFF}, {0x20000, 0x3FFFD}};
  return std::any_of(std::begin(wide), std::end(wide),
                     [&](const auto& range) {
                       return character >= range.first && character <= range.second;
                     })
             ? 2
             : 1;
}

/// Cuts a text in valid UTF-8 to a number of columns.
std::string cut(const std::string& text, std::size_t columns) {
  std::size_t used = 0;
  for (std::size_t i = 0; i < text.size();) {
    const auto first = static_cast<unsigned char>(text[i]);
    const std::size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    char32_t character = bytes == 1 ? first : first & (0xFFu >> (bytes + 1));
    for (std::size_t j = i + 1; j < std::min(i + bytes, text.size()); ++j)
      character = character << 6 | (static_cast<unsigned char>(text[j]) & 0x3F);
    used += columns_of(character);
    if (used > columns) return text.substr(0, i);
    i += bytes;
  }
  return text;
}

std::string bar(double part, std::size_t columns) {
  const auto full = static_cast<std::size_t>(std::lround(part * static_cast<double>(columns)));
  return "[" + std::string(full, '#') + std::string(columns - full, '.') + "]";
}

std::string left_text(const RunStatus& status) {
  const auto left = status.seconds_left();
  return left ? fmt::format(", {} left", format_seconds(*left)) : "";
}

/// Returns "step 0.171 s: data 0.3 %, forward 31.9 %, ..." with the times that are not in a part as
/// rest.
std::string step_parts(const RunStatus& status) {
  const double step = status.value("step_s").value_or(0);
  if (step <= 0) return "";
  std::string text = fmt::format("step {}", format_short_seconds(step));
  constexpr std::array parts = {std::pair("data", "data_s"), std::pair("forward", "forward_s"),
                                std::pair("backward", "backward_s"),
                                std::pair("communication", "comm_exposed_s"),
                                std::pair("update", "optimizer_s")};
  for (const auto& [name, key] : parts)
    text += fmt::format("{} {} {:.1f} %", name == parts.front().first ? ":" : ",", name,
                        100 * status.value(key).value_or(0) / step);
  return text;
}

std::string devices(const RunStatus& status) {
  std::string text;
  const auto add = [&](const char* key, const char* form, double scale = 1) {
    if (const auto value = status.value(key))
      text += (text.empty() ? "" : ", ") + fmt::format(fmt::runtime(form), scale * *value);
  };
  add("gpu_util", "GPU {:.0f} %");
  add("gpu_temp_c", "{:.0f} C");
  add("gpu_power_w", "{:.0f} W");
  add("gpu_clock_mhz", "{:.0f} MHz");
  add("mfu", "MFU {:.1f} %", 100);
  add("memory_device_bytes", "device memory {:.2f} GiB", 0x1p-30);
  add("memory_host_bytes", "host memory {:.2f} GiB", 0x1p-30);
  return text;
}

std::string rate_text(const RunStatus& status) {
  if (const auto tokens = status.value("tokens_per_s"))
    return fmt::format("{:.4g} tokens/s", *tokens);
  return fmt::format("{:.4g} samples/s", status.value("samples_per_s").value_or(0));
}

}  // namespace

std::string line_of(const RunStatus::Note& event) {
  return fmt::format("step {} {}", event.step, event.text);
}

std::string line_of(const RunStatus& status) {
  std::string text = fmt::format("step {:.0f}", status.value("step").value_or(0));
  if (const auto part = status.part_done())
    text += fmt::format(", {:.1f} % of the run{}", 100 * *part, left_text(status));
  if (const auto loss = status.value("loss")) text += fmt::format(", loss {:.4f}", *loss);
  text += ", " + rate_text(status);
  return text;
}

std::vector<std::string> view_of(const RunStatus& status, const train::RunLife& life, double now,
                                 std::size_t columns) {
  std::vector<std::string> lines{life.name + ": " + train::describe(life) +
                                 (status.job().empty() ? "" : ", job " + status.job())};
  if (!status.value("step")) {
    lines.emplace_back("no step so far");
  } else {
    std::string progress = fmt::format("step {:.0f}, epoch {:.2f}", *status.value("step"),
                                       status.value("epoch").value_or(0));
    if (const auto part = status.part_done())
      progress += fmt::format("  {} {:.1f} %{}", bar(*part, columns >= 100 ? 40 : 20), 100 * *part,
                              left_text(status));
    lines.push_back(progress);
    const auto course = [&](const std::string& label, const char* key) {
      constexpr std::size_t label_columns = 22;
      const std::size_t room = columns > label_columns + 8 ? columns - label_columns : 8;
      lines.push_back(fmt::format("{:<{}}", label, label_columns) +
                      sparkline(status.course(key).means(std::min<std::size_t>(room, 100))));
    };
    course(fmt::format("loss {:.5g}", status.value("loss").value_or(NAN)), "loss");
    course(fmt::format("rate {:.4g}", status.value("rate").value_or(NAN)), "rate");
    course(rate_text(status), "samples_per_s");
    lines.push_back(step_parts(status));
    lines.push_back(devices(status));
  }
  for (const auto& [split, note] : status.evaluations())
    lines.push_back(fmt::format("{} at step {}: {}", split, note.step, note.text));
  if (life.is_running() && status.time_limit())
    lines.push_back(fmt::format("this start must end in {}",
                                format_seconds(std::max(0.0, *status.time_limit() - now))));
  for (const RunStatus::Note& event : status.events()) lines.push_back("  " + line_of(event));
  lines.push_back(life.trouble);
  std::erase(lines, "");
  for (std::string& line : lines) line = cut(line, columns);
  return lines;
}

}  // namespace trireme::app
