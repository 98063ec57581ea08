// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/confusion_matrix.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

constexpr std::size_t max_classes = 4096;

/// Takes a record of a CSV file (RFC 4180) from the front of the text. A cell in quotes may contain
/// commas, quotes and line ends. Stops after max_classes + 2 cells, which are too many.
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
    else if (!is_quoted && (c == '\n' || cells.size() > max_classes + 1))
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

ConfusionMatrix parse_confusion(std::string_view text, const std::string& path) {
  constexpr std::size_t max_name_bytes = 80, max_pairs = 20, max_kept_pairs = 1000;
  constexpr std::int64_t max_samples = std::int64_t{1} << 40;
  validate(text.starts_with(confusion_csv_start), "{}: is no confusion matrix", path);
  ConfusionMatrix matrix{.file = std::filesystem::path(path).filename().string(),
                         .classes = take_record(text),
                         .scores = {},
                         .pairs = {},
                         .counts = {}};
  matrix.classes.erase(matrix.classes.begin());
  const std::size_t classes = matrix.classes.size();
  validate(classes <= max_classes, "{}: has more than {} classes", path, max_classes);
  for (std::string& name : matrix.classes) name = printable(name, max_name_bytes);
  matrix.scores = train::class_scores({}, static_cast<std::int64_t>(classes));
  train::Confusion confused;  // pairs of different classes, the most frequent so far
  for (std::size_t label = 0; label < classes; ++label) {
    const std::vector<std::string> cells = take_record(text);
    validate(cells.size() == classes + 1, "{}: row {} has {} cells, not {}", path, label + 1,
             cells.size(), classes + 1);
    for (std::size_t predicted = 0; predicted < classes; ++predicted) {
      const std::optional<std::int64_t> samples = parse_integer(cells[predicted + 1]);
      validate(samples && *samples >= 0 && *samples <= max_samples,
               "{}: \"{}\" in row {} is no number of samples", path,
               printable(cells[predicted + 1], 40), label + 1);
      if (*samples == 0) continue;
      const std::pair pair(static_cast<std::int32_t>(label), static_cast<std::int32_t>(predicted));
      train::add_samples(matrix.scores, pair.first, pair.second, *samples);
      if (classes <= max_drawn_classes) matrix.counts[pair] = *samples;
      if (label != predicted) confused[pair] = *samples;
    }
    if (confused.size() <= max_kept_pairs && label + 1 < classes) continue;
    matrix.pairs = train::most_confused(confused, max_pairs);
    confused.clear();
    for (const train::ConfusedPair& pair : matrix.pairs)
      confused[{pair.label, pair.predicted}] = pair.samples;
  }
  validate(text.empty(), "{}: has more rows than its {} classes", path, classes);
  return matrix;
}

}  // namespace trireme::report
