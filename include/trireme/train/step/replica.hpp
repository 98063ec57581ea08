// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "trireme/checkpoint/state_copy.hpp"
#include "trireme/device/launch.hpp"
#include "trireme/device/stream.hpp"
#include "trireme/train/step/pipeline_stage.hpp"
#include "trireme/train/step/replica_memory.hpp"
#include "trireme/train/step/replica_options.hpp"
#include "trireme/train/step/replica_resources.hpp"
#include "trireme/train/step/stage_parameters.hpp"
#include "trireme/train/step/status_exchange.hpp"
#include "trireme/train/step/weight_update.hpp"

namespace trireme::train {

/// The micro-batches of a rehearsed step: all of them, or those that make different calls. The
/// latter leave out periods of the pipeline's steady state that repeat an earlier one.
enum class RehearsedMicroBatches : std::uint8_t { all, different };

/// Receives what a rank does in a step, in the order of the program. Empty functions receive
/// nothing.
struct StepObserver {
  ops::OpObserver op = {};
  comm::Engine::Observer request = {};
  /// Called before each action of the pipeline's schedule.
  std::function<void(const parallel::PipelineAction&)> action = {};
  /// Called after the last action of the period that is run once and stands for several.
  std::function<void(const parallel::ShortSchedule&)> repeat = {};
  /// Called after the last action, before gradients are finished and weights are updated.
  std::function<void()> update = {};
};

/// Returns a micro-batch of these options without memory, for the meta device.
data::MicroBatch meta_batch(const ReplicaOptions& options);

/// One rank's part of the model, with all its memory.
///
/// It owns three parts and what they share:
/// - ReplicaMemory: the arenas of the rank.
/// - PipelineStage: forward, backward and messages of the rank's blocks.
/// - WeightUpdate: weights, gradient reduction, optimizer and averages.
///
/// The blocks are split over the tensor group, and replicated or sharded over the data group.
/// StepPipeline calls it once per step, in this order:
///
///   begin_step()  [stage().forward() | stage().backward()] per action  post_status()
///   weight_update(): finish_gradients()  begin_update()  start_gather()  end_update()
///
/// All device work is enqueued on one compute stream; calls return before the device has finished.
class Replica {
 public:
  /// Runs a step and an evaluation on the meta device as `world_rank` would, and returns the bytes
  /// that each arena needs. `target` is the device that the run will use. Touches no device memory.
  /// `observer` receives the step, with all micro-batches if it observes anything.
  static MemoryPlan measure(const ReplicaOptions& options, const parallel::MeshShape& shape,
                            int world_rank, DeviceKind target, const StepObserver& observer = {});

  /// Runs steps on the meta device as `world_rank` would, one for each observer, which receives it.
  /// Touches no device memory. All of `micro_batches` run anyway if sums are in tree order, in
  /// which micro-batches differ.
  static void rehearse(const ReplicaOptions& options, const parallel::MeshShape& shape,
                       int world_rank, DeviceKind target, std::span<const StepObserver> observers,
                       RehearsedMicroBatches micro_batches = RehearsedMicroBatches::all);

  /// Allocates the arenas of `plan` on `device` and builds the model, schedule and optimizer.
  ///
  /// On the meta device it only counts the bytes that `target` would need. `engine` outlives the
  /// replica. Throws Failure if memory cannot be allocated.
  Replica(const ReplicaOptions& options, Device device, DeviceKind target, const MemoryPlan& plan,
          const parallel::Mesh& mesh, comm::Engine& engine);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  /// Starts a step of the weight update and of the stage. `measures_noise`: the gradients of its
  /// micro-batches are measured (GradientReducer::begin_step).
  void begin_step(bool measures_noise = false);
  /// Enqueues the status exchange of the step: loss sums, stop requests, and the measured gradients
  /// of micro-batches. Called after the last backward. Collective over the world.
  void post_status(std::uint64_t stop_requests);

  PipelineStage& stage() { return stage_; }
  WeightUpdate& weight_update() { return weight_update_; }
  StatusExchange& status_exchange() { return status_exchange_; }
  /// Returns the copier of checkpoint::BackgroundWrite. Changes to any tensor of slices_of() must
  /// be enqueued after its wait_before_update().
  checkpoint::StateCopy& state_copy() { return state_copy_; }
  ops::Context& context() { return context_; }
  comm::Engine& engine() { return engine_; }
  const ReplicaOptions& options() const { return options_; }
  const parallel::Mesh& mesh() const { return mesh_; }
  const model::Model& model() const { return model_; }
  /// Returns the blocks and parameters of this rank.
  const StageParameters& stage_parameters() const { return stage_parameters_; }
  const LaunchGraphs& graphs() const { return graphs_; }
  /// Returns the largest number of bytes used so far in each arena.
  MemoryPlan peaks() const { return memory_.peaks(); }

 private:
  /// Runs a training step on the meta device, with every part that allocates memory.
  void rehearse_step(const data::MicroBatch& batch, const StepObserver& observer,
                     RehearsedMicroBatches micro_batches);

  /// The stream of all device work. The engine orders its requests after it, so it is attached
  /// before the parts that send requests are made.
  struct ComputeStream : OwnedStream {
    ComputeStream(Device device, LaunchGraphs& graphs, comm::Engine& engine)
        : OwnedStream(device, Priority::normal, &graphs) {
      engine.attach_device(get());
    }
  };

  // In the order of construction: a part uses those above it.
  ReplicaOptions options_;
  parallel::Mesh mesh_;
  comm::Engine& engine_;
  std::vector<parallel::PipelineAction> schedule_;
  ReplicaMemory memory_;
  LaunchGraphs graphs_;
  ComputeStream compute_;
  checkpoint::StateCopy state_copy_;
  ops::Context context_;
  model::Model model_;
  StageParameters stage_parameters_;
  parallel::TensorGroup tensor_group_;
  parallel::BatchNormGroup batch_norm_group_;
  ReplicaResources resources_;
  WeightUpdate weight_update_;
  PipelineStage stage_;
  StatusExchange status_exchange_;
};

}  // namespace trireme::train
