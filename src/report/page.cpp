// SPDX-License-Identifier: Apache-2.0
//
// Puts a page together: head with styles, sections, the data of the curves and the script.
//
// A policy in the head forbids requests of the page, and every script but page.js.
// Texts of the runs are escaped where they are written (monitor::escaped(), curve_data()).
#include <algorithm>
#include <cctype>
#include <vector>

#include <fmt/format.h>

#include "html.hpp"
#include "page_assets.hpp"
#include "page_parts.hpp"
#include "trireme/monitor/svg.hpp"

namespace trireme::report {
namespace {

using monitor::escaped;

std::string title_of(const Report& report) {
  std::string title;
  constexpr std::size_t max_names = 4;
  for (std::size_t i = 0; i < report.runs.size() && i < max_names; ++i)
    title += (i == 0 ? "" : ", ") + report.runs[i].name;
  if (report.runs.size() > max_names)
    title += fmt::format(" and {} more", report.runs.size() - max_names);
  return title;
}

/// A part of the page; one with an empty body is left out.
struct Section {
  const char* heading;
  std::string body;
};

/// Returns "time-of-a-step" for "Time of a step".
std::string anchor_of(std::string heading) {
  for (char& c : heading) c = c == ' ' ? '-' : static_cast<char>(std::tolower(c));
  return heading;
}

std::string controls(const Report& report) {
  std::string text = "<div class=\"controls\" hidden>\n<fieldset>";
  const char* checked = " checked";
  for (const char* axis : {"steps", "epochs", "samples", "time"}) {
    text += fmt::format("<label><input type=\"radio\" name=\"axis\"{}> {}</label>", checked, axis);
    checked = "";
  }
  text +=
      "</fieldset>\n<fieldset><label><input type=\"checkbox\" data-hides=\"no-smooth\" checked> "
      "smoothed</label><label><input type=\"checkbox\" data-hides=\"no-raw\" checked> raw</label>"
      "</fieldset>\n";
  if (report.runs.size() > 1) {
    text += "<fieldset>";
    for (std::size_t run = 0; run < report.runs.size(); ++run)
      text += fmt::format("<label><input type=\"checkbox\" data-shows=\"{}\" checked> {}</label>",
                          run, run_label(report, run));
    text += "</fieldset>\n";
  }
  return text + "</div>\n";
}

std::string page_of(const Report& report, const PageLimits& limits) {
  const std::string title = escaped(title_of(report)), data = curve_data(report),
                    curves = curves_html(report);
  std::string page(page_start);
  page += fmt::format(
      "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"generator\" "
      "content=\"trireme {}\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{}'; "
      "base-uri 'none'; form-action 'none'\">\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n",
      escaped(report.program), page_js_hash(), title, page_css);
  page += fmt::format("<h1>{}</h1>\n<p class=\"soft\">Written {} by trireme {}</p>\n", title,
                      escaped(report.written), escaped(report.program));
  const std::vector<Section> sections{{"Runs", summary_html(report)},
                                      {"Differences between the decks", differences_html(report)},
                                      {"Curves", curves.empty() ? "" : controls(report) + curves},
                                      {"Time of a step", steps_html(report)},
                                      {"Predicted and measured", predictions_html(report)},
                                      {"Memory of a rank", memory_html(report)},
                                      {"Time and cost of the run", accounts_html(report)},
                                      {"Classes", classes_html(report, limits)},
                                      {"True against predicted", values_html(report, limits)},
                                      {"Norms of tensors", tensors_html(report, limits)},
                                      {"Ranks", ranks_html(report, limits)},
                                      {"Events", events_html(report)},
                                      {"Starts", starts_html(report)},
                                      {"Decks", decks_html(report, limits)}};
  page += "<nav>";
  for (const auto& [heading, body] : sections)
    if (!body.empty()) page += fmt::format("<a href=\"#{}\">{}</a> ", anchor_of(heading), heading);
  page += "</nav>\n";
  for (const auto& [heading, body] : sections)
    if (!body.empty())
      page += fmt::format("<section id=\"{}\">\n<h2>{}</h2>\n{}</section>\n", anchor_of(heading),
                          heading, body);
  if (!curves.empty())
    page += fmt::format(
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script>{}</script>\n", data,
        page_js);
  return page + "</body>\n</html>\n";
}

/// Removes the first half of a list.
template <class List>
void keep_later_half(List& list) {
  list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(list.size() / 2));
}

/// Halves the length of the lists that take most of a page.
void reduce(Report& report, PageLimits& limits) {
  for (RunRecord& run : report.runs) {
    History& history = run.history;
    history.train.reduce();
    history.noise.reduce();
    for (auto& [set, track] : history.evaluations) track.reduce();
    keep_later_half(history.marks);
    history.first_events.resize((history.first_events.size() + 1) / 2);
    keep_later_half(history.last_events);
    keep_later_half(run.starts);
  }
  for (std::size_t* const limit :
       {&limits.hosts, &limits.tensors, &limits.classes, &limits.points, &limits.deck_bytes})
    *limit = (*limit + 1) / 2;
}

}  // namespace

std::string color_of_run(std::size_t run) {
  return fmt::format("r{} g{}", run % colors, run / colors);
}

std::string run_label(const Report& report, std::size_t run) {
  const std::string name = escaped(report.runs[run].name);
  if (report.runs.size() == 1) return name;
  return fmt::format("<span class=\"swatch {}\"></span>{}", color_of_run(run), name);
}

std::string for_each_run(const Report& report,
                         const std::function<std::string(const RunRecord&)>& text_of) {
  std::string text;
  for (std::size_t run = 0; run < report.runs.size(); ++run) {
    const std::string one = text_of(report.runs[run]);
    if (one.empty()) continue;
    if (report.runs.size() > 1)
      text += fmt::format("<p class=\"name\">{}</p>\n", run_label(report, run));
    text += one;
  }
  return text;
}

std::optional<double> latest_of(const RunRecord& run, const char* key) {
  const auto found = run.history.latest.find(key);
  return found == run.history.latest.end() ? std::nullopt : std::optional(found->second);
}

std::optional<std::size_t> index_of(const Track& track, std::string_view name) {
  const auto& names = track.names();
  const auto found = std::find(names.begin(), names.end(), name);
  return found == names.end() ? std::nullopt
                              : std::optional(static_cast<std::size_t>(found - names.begin()));
}

std::string to_page(Report report) {
  // The curves take most of a page. With one run they are far below the limit.
  constexpr int max_reductions = 12;
  PageLimits limits;
  std::string page = page_of(report, limits);
  for (int i = 0; i < max_reductions && page.size() > max_page_bytes; ++i) {
    reduce(report, limits);
    page = page_of(report, limits);
  }
  return page;
}

}  // namespace trireme::report
