#pragma once

#include "trireme/parallel/mesh.hpp"
#include "trireme/plan/machine.hpp"
#include "trireme/plan/timeline.hpp"

namespace trireme::plan {

/// Returns the nodes that `ranks` ranks fill, one rank a device.
int nodes_of(const Machine& machine, int ranks);

/// Returns the costs of ops and requests for a layout whose ranks fill the nodes in order.
/// `tfloat32`: as in ops::ContextOptions. `machine` must outlive the result. Functions of the
/// result throw InputError if the machine lacks a figure that they need.
StepCosts costs_on(const Machine& machine, const parallel::MeshShape& shape, bool tfloat32);

}  // namespace trireme::plan
