// SPDX-License-Identifier: Apache-2.0
//
// Puts a page together: head with styles, sections, the data of the curves and the script.
//
// A policy in the head forbids every request, and every script but the one with the page's nonce.
// Texts of the runs are escaped where they are written (monitor::escaped(), curve_data()).
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
  page += summary_html(report);
  page += section("Differences between the decks", differences_html(report));
  if (!curves.empty()) page += section("Curves", controls(report) + curves);
  page += section("Time of a step", steps_html(report));
  page += section("Predicted and measured", predictions_html(report));
  page += section("Memory of a rank", memory_html(report));
  page += section("Time and cost of the run", accounts_html(report));
  page += section("Classes", classes_html(report));
  page += section("Norms of tensors", tensors_html(report));
  page += section("Ranks", ranks_html(report));
  page += section("Events", events_html(report));
  page += section("Starts", starts_html(report));
  page += section("Decks", decks_html(report));
  if (!curves.empty())
    page += fmt::format(
        "<script type=\"application/json\" id=\"data\">{}</script>\n<script nonce=\"{}\">\n{}"
        "</script>\n",
        data, nonce, page_js);
  return page + "</body>\n</html>\n";
}

}  // namespace trireme::report
