// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trireme/plan/proof/call_record.hpp"

namespace trireme::plan {

/// The result of prove(). It does not depend on which ranks were recorded, if those that were not
/// do the same as those that stand for them.
struct Proof {
  /// All groups of one kind.
  struct Group {
    std::string name;
    std::int64_t groups = 0, ranks = 0;  ///< How many there are, and the ranks of each.
    std::int64_t collectives = 0;        ///< Of all groups together.
    bool operator==(const Group&) const = default;
  };
  /// A call that has no counterpart, or calls that wait for each other.
  struct Finding {
    int rank = 0;  ///< The first world rank that it concerns.
    std::string text;
    bool operator==(const Finding&) const = default;
  };

  std::int64_t ranks = 0, programs = 0;  ///< Ranks of the run, and different programs.
  std::int64_t classes = 0;              ///< Ranks that were simulated, each for its equals.
  std::int64_t calls = 0, messages = 0;  ///< Of all ranks.
  std::vector<Group> groups;             ///< That have collectives.
  std::vector<Finding> findings;         ///< None: the run is free of deadlock.

  bool holds() const { return findings.empty(); }
  bool operator==(const Proof&) const = default;
};

/// Proves that the recorded calls of all ranks match and that no order of events stops the run.
///
/// 1. Every send has a receive with the same group, tag, size and number, in the same order, and
///    every receive has a send. All ranks of a group call the same collectives with the same sizes,
///    roots and purposes in the same order.
/// 2. If so, the programs are simulated. A request does not block. A wait blocks until its request
///    is done, and a call of a communicator blocks until its ranks have come. The rules are the
///    strictest that MPI and the engine allow:
///    - a send ends when its receive was submitted: nothing is buffered;
///    - a group starts at most 8 sums and gathers before one of them ends;
///    - a rank in a call of a communicator does not drive its sums and gathers, as with
///      comm::Engine::ProgressMode::polled. If such calls lie between the request and the end of
///      its wait, peers can rely on the rank only after the last of them.
///    No rank chooses between messages, and no step takes a possible one away. So if one order of
///    events ends, all do.
///
/// Findings name rank, call and part of the run. Ranks that wait for each other are listed as a
/// cycle.
Proof prove(const RankPrograms& programs);

}  // namespace trireme::plan
