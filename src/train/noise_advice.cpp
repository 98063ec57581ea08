// SPDX-License-Identifier: Apache-2.0
//
// What a measured noise scale means for a batch, and the ramp that follows from it: used by the log
// of a run that measures it, and by `trireme check --noise-scale`.
#include "trireme/train/noise_advice.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace trireme::train {
namespace {

// The batch of published recipes, with which a larger one is compared.
constexpr std::int64_t usual_batch = 256;
// Each row of a ramp has this many times the samples of the row before it.
constexpr std::int64_t ramp_factor = 4;
// The part of the samples that the last row of a ramp trains.
constexpr double last_row_part = 0.5;

/// Returns a factor with two digits, as in "8.0", "12" or "0.25".
std::string factor(double value) {
  return value >= 9.95 ? fmt::format("{:.0f}", value)
         : value >= 1  ? fmt::format("{:.1f}", value)
                       : fmt::format("{:.2g}", value);
}

/// Returns the rows of a ramp from about the noise scale to `batch`: each has whole micro-batches
/// of all replicas, and the first rows share the samples in front of the last one.
std::string ramp_of(double noise_scale, std::int64_t batch, std::int64_t unit, double epochs) {
  std::int64_t first = unit;
  while (static_cast<double>(2 * first) <= noise_scale) first *= 2;
  std::vector<std::int64_t> sizes;
  for (std::int64_t size = first; size < batch; size *= ramp_factor) sizes.push_back(size);
  if (sizes.empty()) return "";
  const double share = epochs * (1 - last_row_part) / static_cast<double>(sizes.size());
  sizes.push_back(batch);
  std::vector<std::string> rows;
  for (const std::int64_t size : sizes)
    rows.push_back(
        fmt::format("[\"{:.6g} epochs\", {}]", share * static_cast<double>(rows.size()), size));
  return fmt::format("[{}]", fmt::join(rows, ", "));
}

}  // namespace

std::optional<NoiseReading> read_noise(std::span<const double> measurements) {
  std::vector<double> known;
  for (const double samples : measurements)
    if (std::isfinite(samples) && samples > 0) known.push_back(samples);
  if (known.empty()) return std::nullopt;
  const auto [low, high] = std::ranges::minmax(std::span(known).subspan(known.size() / 2));
  return NoiseReading{.samples = known.back(), .low = low, .high = high};
}

double epochs_ratio(double noise_scale, std::int64_t batch, std::int64_t other) {
  return (1 + static_cast<double>(batch) / noise_scale) /
         (1 + static_cast<double>(other) / noise_scale);
}

NoiseAdvice noise_advice(const NoiseReading& reading, const deck::Deck& deck,
                         const ResolvedLayout& layout) {
  const double scale = reading.samples;
  NoiseAdvice advice;
  advice.batch = deck.batch.max_global();
  std::string text = fmt::format("batch {} is {} times the noise scale ({} samples, {} to {})",
                                 advice.batch, factor(static_cast<double>(advice.batch) / scale),
                                 factor(scale), factor(reading.low), factor(reading.high));
  if (advice.batch > usual_batch) {
    advice.other = usual_batch;
    advice.epochs = epochs_ratio(scale, advice.batch, advice.other);
    text += fmt::format(": expect {} times the epochs of batch {}", factor(advice.epochs),
                        advice.other);
  } else {
    constexpr double most = 0x1p53;  // a file of metrics may say anything
    advice.other = std::max<std::int64_t>(std::llround(std::min(scale, most)), 1);
    advice.epochs = epochs_ratio(scale, advice.batch, advice.other);
    text += fmt::format(": expect {} times the epochs of batch {}, and {} times its steps",
                        factor(advice.epochs), advice.other,
                        factor(advice.epochs * static_cast<double>(advice.other) /
                               static_cast<double>(advice.batch)));
  }
  advice.text = std::move(text);
  if (!deck.batch.ramp.empty() || layout.total_steps == 0 ||
      static_cast<double>(advice.batch) <= scale)
    return advice;
  const double epochs = static_cast<double>(layout.total_steps * layout.global) /
                        static_cast<double>(layout.samples_per_epoch);
  const std::string rows =
      ramp_of(scale, advice.batch, deck.batch.micro * layout.data * layout.pipeline, epochs);
  if (rows.empty()) return advice;
  advice.ramp = "batch.ramp = " + rows;
  // The steps of a ramp are not those of the deck.
  if (deck.run.stop.unit == Duration::Unit::steps)
    advice.ramp += fmt::format(", run.stop = \"{:.6g} epochs\"", epochs);
  return advice;
}

}  // namespace trireme::train
