// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "rank_classes.hpp"
#include "trireme/plan/proof/proof.hpp"

namespace trireme::plan {

/// Simulates programs whose calls match, by the rules of prove(). Returns the first cycle of ranks
/// that wait for each other; nothing if all programs end.
std::vector<Proof::Finding> find_deadlock(const RankPrograms& programs, const RankClasses& classes);

}  // namespace trireme::plan
