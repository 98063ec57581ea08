// SPDX-License-Identifier: Apache-2.0
//
// `trireme check DECK --statistics`: what data.augment.normalize and target.normalize could be.
//
// The samples are read by the code that trains, with its crops and colors of epoch 0. Sums are of
// differences from the first number, so that a large mean costs no digits.
#include "data_statistics.hpp"

#include <algorithm>
#include <cmath>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/ops/image.hpp"
#include "trireme/tensor/arena.hpp"

namespace trireme::app {
namespace {

constexpr std::int64_t max_samples = 4096, max_bytes = std::int64_t{4} << 30;

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

  /// Reads the input of a sample, and its target if `with_target`.
  void read(std::int64_t index, bool with_target) {
    dataset_.read(index, static_cast<std::byte*>(stored_.data),
                  with_target ? target_.data() : nullptr, 0, reader_);
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
    const double digit = std[i] > 0 ? std::pow(10, std::floor(std::log10(std[i])) - 3) : 0;
    numbers.push_back(
        fmt::format("{:.7g}", digit > 0 ? std::round(mean[i] / digit) * digit : mean[i]));
  }
  return fmt::format("{}", fmt::join(numbers, ", "));
}

/// Returns the line of a table; a number that never changes is not divided.
std::string normalize_line(const std::vector<double>& mean, std::vector<double> std) {
  const std::string text = means(mean, std);
  for (double& one : std) one = one > 0 ? one : 1;
  return fmt::format("normalize = {{ mean = [{}], std = [{:.4g}] }}\n", text, fmt::join(std, ", "));
}

}  // namespace

DataStatistics measure_statistics(const deck::Deck& deck, const data::Dataset& dataset) {
  const data::SampleInfo& sample = dataset.sample();
  DataStatistics statistics;
  statistics.of = dataset.info().samples;
  statistics.samples = std::min(
      {statistics.of, max_samples, std::max<std::int64_t>(1, max_bytes / sample.input_bytes())});
  const bool has_units = deck.target.answer().has_units;
  std::vector<Moments> channels(static_cast<std::size_t>(dataset.info().channels)),
      components(has_units ? static_cast<std::size_t>(dataset.info().target_size) : 0);
  PlainSamples samples(dataset);
  for (std::int64_t i = 0; i < statistics.samples; ++i) {
    samples.read(i * statistics.of / statistics.samples, has_units);
    add_all(samples.input(), channels);
    if (has_units) add_all(samples.target(), components);
  }
  for (const Moments& one : channels) {
    statistics.mean.push_back(one.mean());
    statistics.std.push_back(one.deviation());
  }
  for (std::size_t i = 0; i < components.size(); ++i) {
    // The targets were normalized as the deck says now.
    statistics.target_mean.push_back(components[i].mean() * deck.target.std_of(i) +
                                     deck.target.mean_of(i));
    statistics.target_std.push_back(components[i].deviation() * deck.target.std_of(i));
  }
  return statistics;
}

std::string to_text(const DataStatistics& statistics) {
  std::string text = fmt::format(
      "mean and standard deviation of {} of {} training samples, as lines of the deck:\n\n"
      "[data.augment]\n{}",
      statistics.samples, statistics.of, normalize_line(statistics.mean, statistics.std));
  if (!statistics.target_mean.empty())
    text += "\n[target]\n" + normalize_line(statistics.target_mean, statistics.target_std);
  return text;
}

}  // namespace trireme::app
