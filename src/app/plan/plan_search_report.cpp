// SPDX-License-Identifier: Apache-2.0
//
// The output of `trireme plan --search`: a table of layouts, counted reasons, and the tables of the
// deck for the best layout.
#include "plan_search_report.hpp"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "app/report_line.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/records/describe.hpp"

namespace trireme::app {
namespace {

using Json = nlohmann::ordered_json;
using plan::FoundLayout;
using plan::LayoutChoice;

// Reasons beyond these concern few layouts.
constexpr std::size_t max_reasons = 8;

std::string describe_choice(const LayoutChoice& choice) {
  std::string text;
  for (const keys::Override& override_of_choice : plan::overrides_of(choice))
    text += fmt::format("{}{} = {}", text.empty() ? "" : ", ", override_of_choice.key,
                        *override_of_choice.value);
  return text;
}

/// Returns a table of a deck's text, from its header to the next one.
std::string table_in(std::string_view text, std::string_view name) {
  std::string table;
  bool is_inside = false;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    if (line.starts_with("[")) is_inside = line == name;
    if (is_inside && !line.empty()) table += std::string(line) + "\n";
  }
  return table;
}

std::string memory_name(const SearchReport& report) {
  return report.machine.device.kind == plan::MachineKind::gpu
             ? fmt::format("the {} of a GPU", format_bytes(report.machine.memory.bytes))
             : fmt::format("a rank's share of the {} of the node",
                           format_bytes(report.machine.memory.bytes));
}

std::string too_large_text(const SearchReport& report) {
  const plan::SearchResult& result = report.result;
  return fmt::format("{} more than {}; the smallest of them needs at least {}",
                     counted(result.too_large, "layout needs", "layouts need"), memory_name(report),
                     format_bytes(result.smallest_bytes));
}

std::vector<std::string> reasons(const SearchReport& report) {
  const plan::SearchResult& result = report.result;
  std::vector<std::string> lines;
  if (result.too_large > 0) lines.push_back(too_large_text(report));
  std::int64_t others = 0;
  for (std::size_t i = 0; i < result.refused.size(); ++i) {
    const plan::RejectedLayouts& refused = result.refused[i];
    if (i < max_reasons)
      lines.push_back(fmt::format("{}, as with {}", counted(refused.layouts, "layout", "layouts"),
                                  refused.reason));
    else
      others += refused.layouts;
  }
  if (others > 0)
    lines.push_back(
        fmt::format("{}: other rules of the deck", counted(others, "layout", "layouts")));
  if (result.slower > 0)
    lines.push_back(fmt::format("{} slower than these, by a lower bound of the step time",
                                counted(result.slower, "layout is", "layouts are")));
  return lines;
}

std::vector<std::string> remarks(const SearchReport& report) {
  std::vector<std::string> lines;
  const deck::Deck& deck = report.run.deck;
  const auto& best = report.result.best;
  if (!deck.batch.ramp.empty())
    lines.emplace_back("with batch.ramp, times and memory are those of its first row");
  if (const auto remark = train::batch_norm_remark(deck);
      remark && !best.empty() && best.front().choice.micro != deck.batch.micro)
    lines.push_back(fmt::format("{}; the deck has {}, and another value is another training",
                                *remark, counted(deck.batch.micro, "sample", "samples")));
  if (std::ranges::any_of(best, [](const FoundLayout& found) { return found.copy_seconds > 0; }))
    lines.emplace_back("copies of parallel.offload are added as if nothing ran beside them");
  return lines;
}

Json choice_json(const LayoutChoice& choice) {
  Json json = Json::object();
  for (const keys::Override& override_of_choice : plan::overrides_of(choice))
    json[override_of_choice.key] = *override_of_choice.value;
  return json;
}

}  // namespace

std::string tables_of(const FoundLayout& found) {
  deck::Deck deck = found.deck;
  // The number of replicas follows from that of all ranks.
  deck.parallel.data = 0;
  const std::string text = deck::write(deck);
  return table_in(text, "[batch]") + "\n" + table_in(text, "[parallel]");
}

std::string describe_found(const FoundLayout& found) {
  std::string layout = train::describe_layout(found.deck.parallel, found.layout);
  layout = layout.substr(layout.find("= ") + 2);
  if (found.choice.chunks > 1) layout += fmt::format(", {} chunks a stage", found.choice.chunks);
  return fmt::format("{}; {} of {}", layout,
                     counted(found.layout.accumulation, "micro-batch", "micro-batches"),
                     found.choice.micro);
}

void print_search(const SearchReport& report) {
  const plan::SearchResult& result = report.result;
  const auto line = [](const char* name, const std::string& text) {
    fmt::print("{:<11}{}\n", name, printable_lines(text));
  };
  line("machine", fmt::format("{}: {}{}", report.machine.name, report.machine.description,
                              report.machine.tested ? "" : "; not compared with measured steps"));
  line("search",
       fmt::format("{} of {}: {} measured, {} predicted",
                   counted(result.layouts, "layout", "layouts"),
                   counted(report.ranks, "rank", "ranks"), result.measured, result.predicted));
  if (!result.best.empty())
    fmt::print("\n{:>3}{:>10}{:>9}{:>11}  layout\n", "", "step", "MFU", "memory");
  for (std::size_t i = 0; i < result.best.size(); ++i) {
    const FoundLayout& found = result.best[i];
    fmt::print("{:>3}{:>10}{:>9}{:>11}  {}\n", i + 1, format_short_seconds(found.seconds()),
               found.mfu ? fmt::format("{:.1f} %", 100 * *found.mfu) : "-",
               format_bytes(found.bytes), describe_found(found));
  }
  fmt::print("\n");
  for (const std::string& reason : reasons(report)) line("rejected", reason);
  for (const std::string& remark : remarks(report)) line("remark", remark);
  if (!result.best.empty())
    fmt::print("\n# The fastest layout, for the deck:\n{}", tables_of(result.best.front()));
}

std::string search_json(const SearchReport& report) {
  const plan::SearchResult& result = report.result;
  Json json{{"deck", report.path},         {"machine", report.machine.name},
            {"ranks", report.ranks},       {"layouts", result.layouts},
            {"measured", result.measured}, {"predicted", result.predicted},
            {"slower", result.slower},     {"remarks", remarks(report)}};
  json["too_large"] = {{"layouts", result.too_large},
                       {"device_bytes", report.machine.memory.bytes},
                       {"smallest_bytes", result.smallest ? Json(result.smallest_bytes) : Json()},
                       {"smallest", result.smallest ? choice_json(*result.smallest) : Json()}};
  json["refused"] = Json::array();
  for (const plan::RejectedLayouts& refused : result.refused)
    json["refused"].push_back({{"layouts", refused.layouts}, {"reason", refused.reason}});
  json["best"] = Json::array();
  for (const FoundLayout& found : result.best)
    json["best"].push_back({{"layout", describe_found(found)},
                            {"seconds", found.seconds()},
                            {"step_seconds", found.step_seconds},
                            {"copy_seconds", found.copy_seconds},
                            {"mfu", found.mfu ? Json(*found.mfu) : Json()},
                            {"bytes", found.bytes},
                            {"run_seconds", found.run_seconds ? Json(*found.run_seconds) : Json()},
                            {"keys", choice_json(found.choice)}});
  json["tables"] = result.best.empty() ? Json() : Json(tables_of(result.best.front()));
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void require_a_layout(const SearchReport& report) {
  const plan::SearchResult& result = report.result;
  if (!result.best.empty()) return;
  validate(result.smallest.has_value(),
           "--search: the deck permits none of {} of {}: {}; use another number of ranks",
           counted(result.layouts, "layout", "layouts"), counted(report.ranks, "rank", "ranks"),
           result.refused.empty() ? "keys that --set fixes do not divide the ranks"
                                  : result.refused.front().reason);
  throw InputError(fmt::format(
      "--search: no layout of {} fits: {}, with {}; use more ranks, a machine with more memory, or "
      "a smaller model",
      counted(report.ranks, "rank", "ranks"), too_large_text(report),
      describe_choice(*result.smallest)));
}

}  // namespace trireme::app
