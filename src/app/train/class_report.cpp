// SPDX-License-Identifier: Apache-2.0
#include "class_report.hpp"

#include <algorithm>
#include <cstddef>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/answer.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

std::string text_of_score(const char* metric, double score) {
  return value_text(evaluation_metric(metric), score);
}

}  // namespace

std::string class_table(std::span<const train::ClassScore> scores,
                        const std::vector<std::string>& names) {
  constexpr std::size_t max_name_bytes = 40;
  std::size_t width = 5;
  for (const std::string& name : names)
    width = std::max(width, printable(name, max_name_bytes).size());
  std::string table = fmt::format("{:<{}} {:>9} {:>9} {:>18} {:>10} {:>10}\n", "class", width,
                                  "samples", "predicted", "accuracy (recall)", "precision", "F1");
  for (const train::ClassScore& score : train::worst_first({scores.begin(), scores.end()}))
    table +=
        fmt::format("{:<{}} {:>9} {:>9} {:>18} {:>10} {:>10}\n",
                    printable(names[static_cast<std::size_t>(score.label)], max_name_bytes), width,
                    score.samples, score.predicted, text_of_score("recall", score.recall()),
                    text_of_score("precision", score.precision()), text_of_score("f1", score.f1()));
  return table;
}

nlohmann::ordered_json class_json(std::span<const train::ClassScore> scores,
                                  const std::vector<std::string>& names) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const train::ClassScore& score : scores)
    list.push_back({{"name", names[static_cast<std::size_t>(score.label)]},
                    {"samples", score.samples},
                    {"predicted", score.predicted},
                    {"correct", score.correct},
                    {"accuracy", score.recall()},
                    {"precision", score.precision()},
                    {"recall", score.recall()},
                    {"f1", score.f1()}});
  return list;
}

}  // namespace trireme::app
