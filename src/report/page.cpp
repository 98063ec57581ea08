// SPDX-License-Identifier: Apache-2.0
//
// Puts a page together: head with styles, sections, the data of the curves and the script.
//
// A policy in the head forbids every request, and every script but the one with the page's nonce.
// Texts of the runs are escaped where they are written (monitor::escaped(), curve_data()).
#include <cctype>
#include <vector>

#include <fmt/format.h>

#include "html.hpp"
#include "page_assets.hpp"
#include "page_parts.hpp"
#include "trireme/io/hash.hpp"
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

}  // namespace

std::string run_label(const Report& report, std::size_t run) {
  const std::string name = escaped(report.runs[run].name);
  if (report.runs.size() == 1) return name;
  return fmt::format("<span class=\"r{}\"><span class=\"swatch\"></span></span>{}", run % colors,
                     name);
}

std::string to_page(const Report& report) {
  const std::string title = escaped(title_of(report)), data = curve_data(report),
                    curves = curves_html(report);
  const std::string nonce = fmt::format("{:016x}", io::xxh3(data.data(), data.size()));
  std::string page(page_start);
  page += fmt::format(
      "<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" "
      "content=\"width=device-width, initial-scale=1\">\n<meta name=\"generator\" "
      "content=\"trireme {}\">\n<meta http-equiv=\"Content-Security-Policy\" "
      "content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'\">\n"
      "<title>{}</title>\n<style>\n{}</style>\n</head>\n<body>\n",
      escaped(report.program), nonce, title, page_css);
  page += fmt::format("<h1>{}</h1>\n<p class=\"soft\">Written {} by trireme {}</p>\n", title,
                      escaped(report.written), escaped(report.program));
  const std::vector<Section> sections{{"Runs", summary_html(report)},
                                      {"Differences between the decks", differences_html(report)},
                                      {"Curves", curves.empty() ? "" : controls(report) + curves},
                                      {"Time of a step", steps_html(report)},
                                      {"Predicted and measured", predictions_html(report)},
                                      {"Memory of a rank", memory_html(report)},
                                      {"Time and cost of the run", accounts_html(report)},
                                      {"Classes", classes_html(report)},
                                      {"Norms of tensors", tensors_html(report)},
                                      {"Ranks", ranks_html(report)},
                                      {"Events", events_html(report)},
                                      {"Starts", starts_html(report)},
                                      {"Decks", decks_html(report)}};
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
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script nonce=\"{}\">\n{}"
        "</script>\n",
        data, nonce, page_js);
  return page + "</body>\n</html>\n";
}

}  // namespace trireme::report
