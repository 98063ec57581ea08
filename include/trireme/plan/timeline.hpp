// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trireme/plan/step_record.hpp"

namespace trireme::plan {

/// How long the parts of a step take, in seconds.
struct StepCosts {
  /// Returns the seconds of one op on the device.
  std::function<double(const ops::OpCall&)> op_seconds;
  /// Returns the seconds of one sum, gather or message, once all of its ranks have arrived.
  std::function<double(const comm::Engine::Call&)> request_seconds;
  /// Returns whether a message goes to another node.
  std::function<bool(const comm::Engine::Call&)> leaves_node;
  /// Requests run beside ops. False: they run while their rank waits for them (a CPU without a
  /// free core).
  bool overlaps = true;
};

/// The simulated step of one pipeline stage.
struct StageTimes {
  /// Seconds of ops in forward and backward actions and in the update.
  double forward = 0, backward = 0, update = 0;
  /// Seconds in which the device waits for requests of a group, by the group's name: "data",
  /// "tensor", "pipeline" ... Waiting for other stages, the bubble, is part of "pipeline".
  std::map<std::string, double> waiting;
  double begin = 0, end = 0;  ///< of the step
};

/// A part of a stage's step, for pictures.
struct StageSpan {
  /// request: a sum, a gather, or a message that the stage sends.
  enum class Kind : std::uint8_t { forward, backward, update, wait, request };
  int stage = 0;
  Kind kind;
  std::int64_t micro_batch = 0;  ///< of forward and backward
  std::string_view group = {};   ///< of wait and request, as in the record
  double begin = 0, end = 0;
};

/// The parts of the result of simulate(): the seconds of stages, or also their spans.
enum class TimelineDetail : std::uint8_t { seconds, spans };

struct Timeline {
  double seconds = 0;  ///< from the end of one step to the end of the next
  std::vector<StageTimes> stages;
  /// Stage by stage; waits lie within actions. Requests of the step before are listed if they end
  /// in this step.
  std::vector<StageSpan> spans;
};

/// Simulates steps of a run in virtual time. `stages`: the record of one rank of each pipeline
/// stage, in their order. The ranks of a stage are alike, so that a sum over a stage's data or
/// tensor group starts when its own rank submits it.
///
/// Each stage has one stream of ops, and for each group a queue of requests, which run in order.
/// Messages between stages share the links of their stages, one inside the node and one to other
/// nodes. Two steps are simulated; the second is returned, since it contains what the step before
/// it has left under way.
///
/// Throws Failure if stages wait for each other without end, with stage, call and group.
Timeline simulate(std::span<const StepRecord* const> stages, const StepCosts& costs,
                  TimelineDetail detail = TimelineDetail::seconds);

/// Simulates the first step of a run alone. Returns the seconds from its begin until all of its
/// requests have ended, also those that a later step would wait for. `group`: only the requests of
/// this group, without ops. Throws as simulate().
double first_step_seconds(std::span<const StepRecord* const> stages, const StepCosts& costs,
                          std::string_view group = {});

}  // namespace trireme::plan
