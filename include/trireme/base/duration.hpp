// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trireme {

/// A duration in the deck: "10 epochs", "1000 steps", "50000 samples", "2B tokens", "30 minutes",
/// "8 hours". Allowed are singular units, fractions ("0.5 epochs") and the suffixes k, M and B
/// after the number.
struct Duration {
  enum class Unit { epochs, steps, samples, tokens, seconds };
  double value = 0;
  Unit unit = Unit::steps;

  bool is_time() const { return unit == Unit::seconds; }
  bool operator==(const Duration&) const = default;
};

/// Parses a duration. If the text is wrong, returns none and writes the problem and a correct
/// example to `error_message`, unless that pointer is null.
std::optional<Duration> parse_duration(std::string_view text, std::string* error_message = nullptr);

/// Returns a text that parse_duration() reads back to the same value: "10 epochs", "1 step", "90
/// seconds".
std::string to_string(const Duration& duration);

/// Consecutive steps that take the same number of samples.
struct StepRow {
  std::int64_t first_step = 1;    ///< counted from 1
  std::int64_t first_sample = 0;  ///< samples that all steps before it take
  std::int64_t samples_per_step = 1;
};

/// The sizes that convert the deck's units into steps.
struct StepScale {
  std::int64_t samples_per_step = 1;
  std::int64_t samples_per_epoch = 1;  ///< samples used per epoch, after drop_last
  std::int64_t tokens_per_sample = 0;  ///< 0 if the dataset has no tokens
  /// The rows of a batch ramp, in order; empty: every step takes samples_per_step samples.
  std::vector<StepRow> rows = {};

  /// Returns the samples that step `step` takes, counted from 1.
  std::int64_t samples_of(std::int64_t step) const;
  /// Returns the samples that the steps 1 to `step` take together.
  std::int64_t samples_after(std::int64_t step) const;
};

/// Returns the number of samples that `duration` lasts, possibly a fraction. `duration` must not be
/// a time or a number of steps. Throws InputError for tokens if the dataset has no tokens.
double samples_of(const Duration& duration, const StepScale& scale);

/// Returns the number of steps, from the start of a run, that `duration` lasts, rounded up.
/// `duration` must not be a time. Throws InputError for tokens if the dataset has no tokens, and
/// for counts of 2^62 steps or more.
std::int64_t steps_of(const Duration& duration, const StepScale& scale);
/// As steps_of(). The messages begin with the deck key of the duration, as in "run.stop = ...".
std::int64_t steps_of_key(std::string_view key, const Duration& duration, const StepScale& scale);

}  // namespace trireme
