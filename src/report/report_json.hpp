// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "trireme/report/report.hpp"

namespace trireme::report {

/// Returns the places and numbers of a track: a list for each axis, `parts` (buckets that begin
/// another part), and `values` with `mean`, `low` and `high` of each number. `low` and `high` are
/// absent if all buckets have one value.
nlohmann::ordered_json to_json(const Track& track);

}  // namespace trireme::report
