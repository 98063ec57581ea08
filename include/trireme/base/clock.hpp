// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Returns the seconds of a clock that never runs backward. All processes on one host share its
/// origin.
double monotonic_seconds();

/// Returns the seconds since 1970-01-01 UTC.
double wall_seconds();

/// Returns the seconds since 1970-01-01 UTC of a text in the form of utc_timestamp(); none for any
/// other text.
std::optional<double> parse_utc(const std::string& text);

/// Returns the current UTC time as "2026-03-01T12:30:05Z".
std::string utc_timestamp();

/// Returns a time in seconds since 1970-01-01 UTC in that form.
std::string utc_timestamp(double seconds);

}  // namespace trireme
