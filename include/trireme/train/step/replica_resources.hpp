// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "trireme/comm/engine/engine.hpp"
#include "trireme/model/model.hpp"
#include "trireme/ops/context.hpp"
#include "trireme/parallel/batch_norm_group.hpp"
#include "trireme/parallel/mesh.hpp"
#include "trireme/parallel/tensor_group.hpp"
#include "trireme/train/step/replica_memory.hpp"
#include "trireme/train/step/replica_options.hpp"
#include "trireme/train/step/stage_parameters.hpp"

namespace trireme::train {

/// The parts of a Replica that its weight update and its pipeline stage share. The replica owns
/// them, except the engine, and outlives both.
struct ReplicaResources {
  const ReplicaOptions& options;
  const parallel::Mesh& mesh;
  comm::Engine& engine;
  ReplicaMemory& memory;
  ops::Context& context;
  const model::Model& model;
  const StageParameters& stage_parameters;
  const parallel::TensorGroup& tensor_group;
  const parallel::BatchNormGroup& batch_norm_group;
  DeviceKind target;  ///< The device of the run; on the meta device: the device that is planned.
};

}  // namespace trireme::train
