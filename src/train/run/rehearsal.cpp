// SPDX-License-Identifier: Apache-2.0
//
// Runs the communication of a training run on the meta device, for `trireme plan --prove`.
//
// The order of the parts is that of TrainingLoop::train(): steps, reports of ranks, comparison of
// replicas, evaluation, checkpoint, more steps, stop. Each part calls the function that a run
// calls.
#include "trireme/train/run/rehearsal.hpp"

#include <exception>

#include "stop_request.hpp"
#include "train/supervision/rank_reports.hpp"
#include "train/supervision/replica_check.hpp"
#include "trireme/train/step/evaluation.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::train {
namespace {

/// Reports the blocking calls of all groups of the mesh.
void observe_groups(const parallel::Mesh& mesh, const RunObserver& observer) {
  for (const comm::Communicator* group :
       {&mesh.world, &mesh.data, &mesh.tensor, &mesh.pipeline, &mesh.model, &mesh.tied_group,
        &mesh.delayed_data, &mesh.batch_norm}) {
    if (group->size() == 1) continue;
    // The copy without an observer would keep its own group alive.
    const comm::Communicator name_only =
        comm::Communicator::meta(group->rank(), group->size(), group->name());
    group->observe([&observer, name_only](const comm::Communicator::Call& call) {
      observer.call(name_only, call);
    });
  }
}

/// The calls of Saver before a checkpoint's file is planned: no request may be under way, and all
/// ranks take rank 0's time.
void begin_checkpoint(Replica& replica) {
  replica.weight_update().complete_pending();
  replica.engine().quiesce();
  double elapsed_seconds = 0;
  replica.mesh().world.broadcast(std::as_writable_bytes(std::span(&elapsed_seconds, 1)), 0);
}

}  // namespace

void rehearse_run(const ReplicaOptions& options, const parallel::MeshShape& shape, int world_rank,
                  DeviceKind target, const RehearsedParts& parts, const RunObserver& observer) {
  TRIREME_EXPECT(options.trains);
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Replica replica(options, Device{DeviceKind::meta, 0}, target, {},
                  parallel::Mesh::meta(shape, world_rank), engine);
  observer.begin(replica);
  replica.context().set_op_observer(observer.op);
  engine.observe(observer.request, replica.context().target());
  observe_groups(replica.mesh(), observer);
  const data::MicroBatch batch = meta_batch(options);
  const auto next = [&](std::exception_ptr&) -> const data::MicroBatch& { return batch; };
  StepPipeline steps(replica, next);
  const bool is_periodic = replica.weight_update().is_periodic();
  const auto step = [&](std::string_view part, const StepRequest& request) {
    observer.part(part);
    steps.begin(request);
    steps.end();
  };
  const auto compare = [&] {
    if (!parts.compares_replicas) return;
    observer.part("the comparison of replicas");
    engine.quiesce();
    replica_hashes(replica);
  };

  // 1. Steps; the second one waits for what the first one has left under way.
  step("step 1", {.rates = {.learning_rate = 0.1}});
  step("step 2", {.rates = {.learning_rate = 0.1},
                  .averages = is_periodic,
                  .measures_noise = options.noise_scale,
                  .measures_tensors = options.tensor_norms});
  // 2. The reports before a row of metrics, and due work.
  observer.part("the reports of ranks");
  RankReports reports(replica.mesh().world, engine);
  reports.post({});
  reports.wait();
  compare();
  if (parts.evaluation_rounds > 0) {
    observer.part("the evaluation");
    evaluate(replica, EvaluationPass{parts.evaluation_rounds, next});
  }
  observer.part("the checkpoint");
  begin_checkpoint(replica);
  // 3. A step after them, in which rank 0 asks for a stop.
  step("step 3", {.rates = {.learning_rate = 0.1},
                  .stop_requests = world_rank == 0 ? flag_stop : flag_none,
                  .averages = is_periodic});
  // 4. The end of the run.
  compare();
  observer.part("the last checkpoint");
  begin_checkpoint(replica);
  observer.part("the end");
  engine.quiesce();
  comm::together(replica.mesh().world, [] {});
  engine.observe({}, replica.context().target());
  replica.context().set_op_observer({});
}

}  // namespace trireme::train
