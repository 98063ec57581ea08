// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/confusion_matrix.hpp"

#include <optional>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

constexpr std::size_t max_classes = 4096;

/// Takes a record of a CSV file (RFC 4180) from the front of the text. A cell in quotes may contain
/// commas, quotes and line ends.
std::vector<std::string> take_record(std::string_view& text) {
  std::vector<std::string> cells(1);
  bool is_quoted = false;
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (is_quoted && c == '"' && at + 1 < text.size() && text[at + 1] == '"')
      cells.back() += text[++at];
    else if (c == '"')
      is_quoted = !is_quoted;
    else if (!is_quoted && c == '\n')
      break;
    else if (!is_quoted && c == ',')
      cells.emplace_back();
    else if (is_quoted || c != '\r')
      cells.back() += c;
  }
  text.remove_prefix(at < text.size() ? at + 1 : at);
  return cells;
}

}  // namespace

ConfusionMatrix parse_confusion(std::string_view text, const std::string& file) {
  validate(text.starts_with(confusion_csv_start), "{}: is no confusion matrix", file);
  ConfusionMatrix matrix{.file = file, .classes = take_record(text), .counts = {}};
  matrix.classes.erase(matrix.classes.begin());
  const std::size_t classes = matrix.classes.size();
  validate(classes <= max_classes, "{}: has {} classes, more than {}", file, classes, max_classes);
  for (std::size_t label = 0; label < classes; ++label) {
    const std::vector<std::string> cells = take_record(text);
    validate(cells.size() == classes + 1, "{}: row {} has {} cells, not {}", file, label + 1,
             cells.size(), classes + 1);
    for (std::size_t predicted = 0; predicted < classes; ++predicted) {
      constexpr std::int64_t max_samples = std::int64_t{1} << 40;
      const std::optional<std::int64_t> samples = parse_integer(cells[predicted + 1]);
      validate(samples && *samples >= 0 && *samples <= max_samples,
               "{}: \"{}\" in row {} is no number of samples", file,
               printable(cells[predicted + 1], 40), label + 1);
      if (*samples > 0)
        matrix.counts[{static_cast<std::int32_t>(label), static_cast<std::int32_t>(predicted)}] =
            *samples;
    }
  }
  validate(text.empty(), "{}: has more rows than its {} classes", file, classes);
  return matrix;
}

}  // namespace trireme::report
