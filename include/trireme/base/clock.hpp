#pragma once

#include <cstdint>
#include <string>

namespace trireme {

/// Seconds of a clock that never goes back.
double monotonic_seconds();

/// Seconds since 1970.
double wall_seconds();

/// "2026-03-01T12:30:05Z".
std::string utc_timestamp();

}  // namespace trireme
