// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "doctor_facts.hpp"

namespace trireme::app {

/// A subject of `trireme doctor` with its state.
struct Finding {
  enum class Status : std::uint8_t { problem, warning, ok };
  /// The first thing that is hurt, the most harmful first.
  enum class Harm : std::uint8_t {
    start,  ///< the run does not start
    loss,   ///< the run fails later, or loses work
    speed,  ///< the run is slower
    none
  };
  Status status = Status::ok;
  Harm harm = Harm::none;
  std::string subject;             ///< "cores"
  std::string found;               ///< the values
  std::string hurts, remedy;       ///< empty if the status is ok
  std::vector<std::string> nodes;  ///< names of the nodes concerned; empty: all
};

/// Each returns a finding of this status.
Finding ok(const std::string& subject, const std::string& found);
Finding warning(Finding::Harm harm, const std::string& subject, const std::string& found,
                const std::string& hurts, const std::string& remedy);
Finding problem(Finding::Harm harm, const std::string& subject, const std::string& found,
                const std::string& hurts, const std::string& remedy);

/// Returns "problem", "warning" or "ok".
const char* to_string(Finding::Status status);

/// Returns everything that the facts say, the most harmful finding first. A pure function.
std::vector<Finding> find(const MachineFacts& facts);

// The parts of find(), in doctor_node.cpp, doctor_cores.cpp and doctor_differences.cpp. Each
// appends its findings.

/// Memory, limits, GPUs and folder of each node. Equal findings of several nodes become one.
void find_in_nodes(const MachineFacts& facts, std::vector<Finding>& findings);
/// Threads of the ranks against the cores that they may use.
void find_in_cores(const MachineFacts& facts, std::vector<Finding>& findings);
/// Values that differ between nodes, with the names of the nodes that have the rarer value.
void find_differences(const MachineFacts& facts, std::vector<Finding>& findings);

/// Appends findings that each concern one node. Those with the same status, subject, harm and
/// remedy become one, with the words of the first node and the names of all. A finding about all
/// `node_count` nodes has no names.
void append_joined(std::vector<Finding> of_nodes, std::size_t node_count,
                   std::vector<Finding>& findings);

/// Returns a limit as a number, or "unlimited".
std::string limit_text(const std::optional<std::int64_t>& limit);

/// Returns up to eight names, and the number of the others: "n1, n2 and 3 more".
std::string list_of(const std::vector<std::string>& names);

}  // namespace trireme::app
