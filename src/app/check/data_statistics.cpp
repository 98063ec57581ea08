// SPDX-License-Identifier: Apache-2.0
//
// `trireme check DECK --statistics`: numbers for data.augment.normalize and target.normalize; and
// without the option a note on those that the deck lacks.
//
// The samples are read by the code that trains, with its crops and colors of epoch 0. Sums are of
// differences from the first number, so that a large mean costs no digits.
#include "data_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/permutation.hpp"
#include "trireme/base/text.hpp"
#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t max_bytes = std::int64_t{4} << 30;

/// Mean and standard deviation of a stream of numbers; those that are NaN are missing.
class Moments {
 public:
  void add(double number) {
    if (std::isnan(number)) return;
    if (count_ == 0) first_ = number;
    ++count_;
    sum_ += number - first_;
    squares_ += (number - first_) * (number - first_);
  }
  double mean() const { return count_ > 0 ? first_ + sum_ / count_ : 0; }
  double deviation() const {
    const double shifted = count_ > 0 ? sum_ / count_ : 0;
    return count_ > 0 ? std::sqrt(std::max(0.0, squares_ / count_ - shifted * shifted)) : 0;
  }

 private:
  double first_ = 0, sum_ = 0, squares_ = 0, count_ = 0;
};

/// Adds numbers whose channels, or components, are the innermost dimension.
void add_all(std::span<const float> numbers, std::span<Moments> channels) {
  for (std::size_t i = 0; i < numbers.size(); ++i) channels[i % channels.size()].add(numbers[i]);
}

/// Reads samples one by one, as float32 and without augmentation on the device.
class PlainSamples {
 public:
  explicit PlainSamples(const data::Dataset& dataset)
      : dataset_(dataset),
        shape_{1, dataset.info().height, dataset.info().width, dataset.info().channels},
        memory_({}, "samples", shape_.elements() * 2 * size_of(DType::float32) + 256),
        stored_(memory_.allocate(dataset.sample().dtype, shape_)),
        input_(memory_.allocate(DType::float32, shape_)),
        target_(static_cast<std::size_t>(dataset.sample().labels.elements())) {}

  /// Reads the input of a sample, its target, or both.
  void read(std::int64_t index, bool with_input, bool with_target) {
    dataset_.read(index, with_input ? static_cast<std::byte*>(stored_.data) : nullptr,
                  with_target ? target_.data() : nullptr, 0, reader_);
    if (!with_input) return;
    const ops::ImageTransform unchanged{};
    Arena workspace({}, "workspace", 0), library({}, "library", 0);
    ops::Context context({}, workspace, library);
    ops::prepare_images(context, {}, stored_, &unchanged, input_);
  }
  std::span<const float> input() const {
    return {input_.as<float>(), static_cast<std::size_t>(input_.elements())};
  }
  std::span<const float> target() const { return target_; }

 private:
  const data::Dataset& dataset_;
  Shape shape_;
  Arena memory_;
  Tensor stored_, input_;
  std::vector<float> target_;
  data::ReaderState reader_;
};

/// Returns a list of means, to a thousandth of the deviations.
std::string means(const std::vector<double>& mean, const std::vector<double>& std) {
  std::vector<std::string> numbers;
  for (std::size_t i = 0; i < mean.size(); ++i) {
    const bool varies = std[i] > 0 && mean[i] != 0;
    const double digits =
        varies ? std::floor(std::log10(std::abs(mean[i]))) - std::floor(std::log10(std[i])) + 4 : 7;
    numbers.push_back(
        fmt::format("{:.{}g}", mean[i], static_cast<int>(std::clamp(digits, 1.0, 17.0))));
  }
  return fmt::format("{}", fmt::join(numbers, ", "));
}

/// Returns the line of a table; a number that never changes is not divided.
std::string normalize_line(const std::vector<double>& mean, std::vector<double> std) {
  const std::string text = means(mean, std);
  const bool fits = std::ranges::all_of(
      std, [](double one) { return one == 0 || (one >= 1e-30 && one <= 1e30); });
  for (double& one : std) one = one > 0 ? one : 1;
  return fmt::format("normalize = {{ mean = [{}], std = [{:.4g}] }}{}\n", text,
                     fmt::join(std, ", "),
                     fits ? "" : "  # out of range: give the dataset a scale_factor");
}

/// Adds these samples of a set; an empty span: the inputs, or the targets, are not added.
void add_samples(const data::Dataset& dataset, std::span<const std::int64_t> places,
                 std::span<Moments> channels, std::span<Moments> components) {
  PlainSamples samples(dataset);
  for (const std::int64_t place : places) {
    samples.read(place, !channels.empty(), !components.empty());
    if (!channels.empty()) add_all(samples.input(), channels);
    if (!components.empty()) add_all(samples.target(), components);
  }
}

/// Returns the samples that are read.
std::vector<std::int64_t> places_in(const data::Dataset& dataset, std::int64_t max_samples) {
  const std::int64_t that_fit =
      std::max<std::int64_t>(1, max_bytes / dataset.sample().input_bytes());
  return spread(dataset.info().samples, std::min(max_samples, that_fit));
}

/// Takes the statistics of the target from components that were normalized as in `target`.
void set_target(DataStatistics& statistics, std::span<const Moments> components,
                const data::TargetOptions& target) {
  statistics.target_mean.clear();
  statistics.target_std.clear();
  for (std::size_t i = 0; i < components.size(); ++i) {
    const double scale = target.std_of(i);
    statistics.target_mean.push_back(components[i].mean() * scale + target.mean_of(i));
    statistics.target_std.push_back(components[i].deviation() * scale);
  }
}

DataStatistics statistics_of(const deck::Deck& deck, const data::Dataset& dataset,
                             std::span<const std::int64_t> places) {
  DataStatistics statistics;
  statistics.samples = std::ssize(places);
  statistics.of = dataset.info().samples;
  const bool has_units = deck.target.answer().has_units;
  std::vector<Moments> channels(static_cast<std::size_t>(dataset.info().channels)),
      components(has_units ? static_cast<std::size_t>(dataset.info().target.count) : 0);
  add_samples(dataset, places, channels, components);
  for (const Moments& one : channels) {
    statistics.mean.push_back(one.mean());
    statistics.std.push_back(one.deviation());
  }
  set_target(statistics, components, deck.target);
  return statistics;
}

/// Numbers that a table `normalize` of the deck changes.
struct ScaledNumbers {
  const char *what, *key;  ///< in a note
  const std::vector<double>&mean, &std;
  const std::vector<double>&given_mean, &given_std;  ///< of the deck; empty: none
  const std::vector<std::string>& datasets;
};

/// Returns a note about the part that is farthest from 0 and 1; empty: all are near.
std::string note_on(const ScaledNumbers& numbers) {
  constexpr double far = 10, tiny = 0.01;
  std::string note;
  double farthest = far;
  for (std::size_t i = 0; i < numbers.mean.size(); ++i) {
    const bool is_given = !numbers.given_mean.empty();
    const std::size_t given = numbers.given_mean.size() == 1 ? 0 : i;
    const double scale = is_given ? 1 / numbers.given_std[given] : 1,
                 shift = is_given ? numbers.given_mean[given] : 0;
    const double mean = (numbers.mean[i] - shift) * scale, std = numbers.std[i] * scale,
                 distance = std::max({std::abs(mean), std, std > 0 ? far * tiny / std : 0.0});
    if (distance <= farthest) continue;
    farthest = distance;
    note = fmt::format(
        "{} {}{} has mean {:.4g} and standard deviation {:.4g}{}, far from 0 and 1; {} {} "
        "(trireme check DECK --statistics prints it)",
        numbers.what, i,
        numbers.datasets.size() == numbers.mean.size()
            ? fmt::format(" ({})", printable(numbers.datasets[i], 80))
            : "",
        mean, std, is_given ? fmt::format(" after {}", numbers.key) : "",
        is_given ? "change" : "give", numbers.key);
  }
  return note;
}

}  // namespace

std::vector<std::string> notes_on_scale(const deck::Deck& deck, const DataStatistics& statistics) {
  std::vector<std::string> notes;
  const ScaledNumbers inputs{"channel",           "data.augment.normalize", statistics.mean,
                             statistics.std,      deck.data.augment.mean,   deck.data.augment.std,
                             deck.data.hdf5.input};
  const ScaledNumbers targets{deck.target.answer().part, "target.normalize", statistics.target_mean,
                              statistics.target_std,     deck.target.mean,   deck.target.std,
                              deck.data.hdf5.target};
  for (const ScaledNumbers& numbers : {inputs, targets})
    if (std::string note = note_on(numbers); !note.empty()) notes.push_back(std::move(note));
  return notes;
}

DataStatistics measure_statistics(const deck::Deck& deck, const data::Dataset& dataset) {
  const std::vector<std::int64_t> places = places_in(dataset, 4096);
  DataStatistics statistics = statistics_of(deck, dataset, places);
  if (statistics.target_mean.empty()) return statistics;
  // Targets come as float32 of (number - mean) / std. With the first result for these, a second
  // pass has the digits that a large mean takes.
  deck::Deck normalized = deck;
  normalized.target.mean = statistics.target_mean;
  normalized.target.std = statistics.target_std;
  for (double& std : normalized.target.std) std = std > 0 ? std : 1;
  const data::Dataset again(deck.data.train, train::training_form(normalized));
  std::vector<Moments> exact(statistics.target_mean.size());
  add_samples(again, places, {}, exact);
  set_target(statistics, exact, normalized.target);
  return statistics;
}

DataStatistics estimate_statistics(const deck::Deck& deck, const data::Dataset& dataset) {
  return statistics_of(deck, dataset, places_in(dataset, 32));
}

std::string to_text(const DataStatistics& statistics) {
  std::string text = fmt::format(
      "mean and standard deviation of {} of {} training samples, to add to the tables of the "
      "deck:\n\n"
      "[data.augment]\n{}",
      statistics.samples, statistics.of, normalize_line(statistics.mean, statistics.std));
  if (!statistics.target_mean.empty())
    text += "\n[target]\n" + normalize_line(statistics.target_mean, statistics.target_std);
  return text;
}

}  // namespace trireme::app
