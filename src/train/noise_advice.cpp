// SPDX-License-Identifier: Apache-2.0
//
// Compares the batch of a deck with others by a measured noise scale, and makes a ramp that leads
// to it: for the log of a run that measures the scale, and for `trireme check --noise-scale`.
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
// A file of metrics may say anything.
constexpr double max_scale = 0x1p53;

/// Returns a factor with two digits, as in "8.0", "12" or "0.25".
std::string factor(double value) {
  return value >= 9.95 ? fmt::format("{:.0f}", value)
         : value >= 1  ? fmt::format("{:.1f}", value)
                       : fmt::format("{:.2g}", value);
}

/// Returns the rows of a ramp from about the noise scale to `batch`. `unit`: the samples of which
/// each row has a multiple. The first rows share the samples in front of the last one.
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

NoiseAdvice noise_advice(const NoiseReading& reading, const deck::Deck& deck,
                         const ResolvedLayout& layout) {
  const double scale = reading.samples;
  NoiseAdvice advice;
  advice.batch = deck.batch.max_global();
  const auto batch = static_cast<double>(advice.batch);
  const bool is_large = advice.batch > usual_batch;
  advice.other =
      is_large ? usual_batch : std::max<std::int64_t>(std::llround(std::min(scale, max_scale)), 1);
  const auto other = static_cast<double>(advice.other);
  advice.epochs = (1 + batch / scale) / (1 + other / scale);
  advice.text = fmt::format(
      "batch {} is {} times the noise scale ({} samples, {} to {}): expect {} times the epochs of "
      "batch {}",
      advice.batch, factor(batch / scale), factor(scale), factor(reading.low), factor(reading.high),
      factor(advice.epochs), advice.other);
  if (!is_large)
    advice.text += fmt::format(", and {} times its steps", factor(advice.epochs * other / batch));
  if (!deck.batch.ramp.empty() || layout.total_steps == 0 || batch <= scale) return advice;
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
