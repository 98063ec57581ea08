// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "trireme/ops/context.hpp"
#include "trireme/plan/machine/machine.hpp"

namespace trireme::plan {

/// The part of a machine that one rank uses, and how it computes.
struct RankShare {
  /// CPU: threads of the rank; 0: DeviceFigures::threads.
  std::int64_t threads = 0;
  /// CPU: ranks that compute on the same node.
  std::int64_t ranks_on_node = 1;
  /// Ranks of the run.
  std::int64_t ranks = 1;
  /// float32 products run on tensor cores with 10 bits of the mantissa.
  bool tfloat32 = false;
};

/// Returns the seconds of one call of an op:
///
///   max(flops / (peak * compute * scaling), bytes / (bandwidth * bandwidth part)) + launch gap
///
/// `scaling` is ScalingFigures::compute in a run of several ranks, and 1 on one rank.
/// `compute` and `bandwidth part` are those of the machine's table for the type and the op, or else
/// for its class (efficiency_of()). A measured grid is interpolated over (m, n, k), a measured
/// curve over the bytes, both in logarithms, and constant outside. Otherwise compute is multiplied
/// by
/// - tile and wave quantization: the part of whole waves of whole tiles that is useful work
///   (NVIDIA, Matrix Multiplication Background User's Guide);
/// - k / (k + half_k).
///
/// CPU: the speed is proportional to the threads and their efficiency, and threads beyond the cores
/// share them. Ops larger than the last cache share the node's memory bandwidth.
/// Throws InputError if the machine has no peak for the type.
double op_seconds(const Machine& machine, const ops::OpCall& call, const RankShare& share = {});

/// Returns the class of a call. The part of a fused op that has no products is memory-bound.
std::string class_of(const ops::OpCall& call);

/// Returns the table that op_seconds() uses: the first one of type and op, op of all types, type
/// and class, class of all types.
const Efficiency& efficiency_of(const Machine& machine, const ops::OpCall& call,
                                const RankShare& share = {});

}  // namespace trireme::plan
