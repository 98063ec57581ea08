#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trireme {

/// A duration of the deck: "10 epochs", "1000 steps", "50000 samples", "2B tokens", "30 minutes",
/// "8 hours". Singular forms, fractions ("0.5 epochs") and k, M, B after the number are allowed.
struct Duration {
  enum class Unit { epochs, steps, samples, tokens, seconds };
  double value = 0;
  Unit unit = Unit::steps;

  bool is_time() const { return unit == Unit::seconds; }
  bool operator==(const Duration&) const = default;
};

/// Reads a duration; `why_not` (if given) gets what is wrong and what would be right where none is
/// returned.
std::optional<Duration> parse_duration(std::string_view text, std::string* error_message = nullptr);

/// The form that parse_duration reads back to the same value: "10 epochs", "1 step", "90 seconds".
std::string to_string(const Duration& duration);

/// How many of the deck's units make a step.
struct StepScale {
  std::int64_t samples_per_step = 1;
  std::int64_t samples_per_epoch = 1;  ///< samples really taken in an epoch (after drop_last)
  std::int64_t tokens_per_sample = 0;  ///< 0: not a token dataset
};

/// The first step count at which `duration` is over (rounded up). Not for times. Throws InputError
/// for tokens without a token dataset.
std::int64_t steps_of(const Duration& duration, const StepScale& scale);

}  // namespace trireme
