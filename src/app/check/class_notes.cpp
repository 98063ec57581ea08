// SPDX-License-Identifier: Apache-2.0
#include "class_notes.hpp"

#include <algorithm>
#include <cstdint>

#include <fmt/format.h>

#include "trireme/base/permutation.hpp"
#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

constexpr const char* from_zero = "classes are numbered from 0";

/// Returns how many labels each class has. A label of -1 does not count.
std::vector<std::int64_t> count_labels(const data::Dataset& dataset,
                                       const std::vector<std::int64_t>& samples) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(dataset.info().target.count));
  std::vector<std::int32_t> labels(static_cast<std::size_t>(dataset.sample().labels.elements()));
  for (const std::int64_t sample : samples) {
    dataset.read(sample, nullptr, labels.data());
    for (const std::int32_t label : labels)
      if (label >= 0) ++counts[static_cast<std::size_t>(label)];
  }
  return counts;
}

}  // namespace

std::vector<std::string> notes_on_classes(const deck::Deck& deck, const data::Dataset& dataset) {
  constexpr std::int64_t max_maps = 32;
  const data::DatasetInfo& info = dataset.info();
  const bool is_of_pixels = deck::answer_of(deck).has_classes_of_pixels();
  if (!is_of_pixels && !deck::answer_of(deck).is_one_class()) return {};
  // Labels are in memory; maps are read.
  const std::int64_t samples = is_of_pixels ? std::min(max_maps, info.samples) : info.samples;
  const std::vector<std::int64_t> counts = count_labels(dataset, spread(info.samples, samples));
  const auto missing = std::count(counts.begin(), counts.end(), 0);
  if (is_of_pixels && missing == std::ssize(counts))
    return {fmt::format("no pixel of {} counts; is target.ignore right?",
                        counted(samples, "sample", "samples"))};
  if (is_of_pixels && counts[0] == 0)
    return {fmt::format("no pixel of {} has class 0; {}", counted(samples, "sample", "samples"),
                        from_zero)};
  if (is_of_pixels || missing == 0) return {};
  const auto first = std::find(counts.begin(), counts.end(), 0) - counts.begin();
  return {fmt::format("{} of {} in data.train: no sample has class {}{}", missing,
                      counted(std::ssize(counts), "class is not", "classes are not"), first,
                      first == 0 ? fmt::format("; {}", from_zero) : "")};
}

}  // namespace trireme::app
