// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/deck/options.hpp"
#include "trireme/keys/fields.hpp"

namespace trireme::deck {

using namespace keys;

// Fields of values that only tables of the deck have. Each keeps a reference to its option, which
// must outlive the field.
/// Rows of a duration and a number of samples, as in [["0 epochs", 256], ["5 epochs", 1024]]; the
/// first one begins at 0. Also stores the samples of the first row in `global`. An empty list is no
/// ramp, and is not written.
Field ramp(std::vector<RampRow>& rows, std::int64_t& global, NumberRange range);
/// "auto", "none" or a time.
Field walltime(bool& automatic, std::optional<Duration>& value);
/// Faults for tests, separated by ";", as in "kill rank 2 step 17 phase checkpoint-write". An empty
/// list is not written.
Field faults(std::vector<Fault>& value);

}  // namespace trireme::deck
