#include "trireme/train/step.hpp"

#include <cmath>
#include <span>

#include "trireme/base/clock.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::train {
namespace {

/// The sums of all replicas, which their last stages know, in the order of the tree; the wishes of all ranks joined.
StepMessage agree_on(Replica& replica, const StepMessage& mine, StepMessages& room) {
  const parallel::Mesh& mesh = replica.mesh();
  const auto ranks = static_cast<std::size_t>(mesh.world.size());
  TRIREME_EXPECT(room.all.size() == ranks && room.bounds.size() == ranks + 1);
  room.all[static_cast<std::size_t>(mesh.world.rank())] = mine;
  comm::Engine& engine = replica.engine();  // goes on with the buckets meanwhile, for which others may wait
  engine.wait(engine.all_gather(mesh.world, reinterpret_cast<std::byte*>(room.all.data()), room.bounds, "trireme/train/agree"));
  StepMessage joined;
  for (const StepMessage& message : room.all) joined.wishes |= message.wishes;
  const int last = mesh.shape.pipeline - 1;
  for (int data = 0; data < mesh.shape.data; ++data) {
    room.sums[static_cast<std::size_t>(data)] = room.all[static_cast<std::size_t>(parallel::rank_of(mesh.shape, {last, data, 0}))].sums;
  }
  joined.sums = parallel::tree_sum(std::span<const Sums>(room.sums));
  return joined;
}

}  // namespace

StepMessages::StepMessages(const parallel::Mesh& mesh)
    : all(static_cast<std::size_t>(mesh.world.size())), sums(static_cast<std::size_t>(mesh.shape.data)) {
  for (std::size_t rank = 0; rank <= all.size(); ++rank) bounds.push_back(static_cast<std::int64_t>(rank * sizeof(StepMessage)));
}

StepResult train_step(Replica& replica, data::Loader& loader, double rate, std::uint32_t wishes, StepMessages& messages, monitor::Trace* trace) {
  StepResult result;
  StepTimes& times = result.times;
  const comm::Engine& engine = replica.engine();
  const double start = monotonic_seconds();
  double mark = start, waited = engine.waited_seconds();
  const auto lap = [&](double& part) {  // what was spent waiting for other ranks is told apart; returns the rest
    const double now = monotonic_seconds(), stood = engine.waited_seconds();
    const double busy = now - mark - (stood - waited);
    part += busy;
    times.comm_exposed += stood - waited;
    mark = now;
    waited = stood;
    return busy;
  };

  replica.reducer().begin_step();
  for (const parallel::PipelineAction& action : replica.schedule()) {
    const data::MicroBatch* batch = Replica::takes_batch(action) ? &loader.next() : nullptr;
    lap(times.data);
    if (action.forward) replica.forward(action, batch);
    else replica.backward(action);
    const double busy = lap(action.forward ? times.forward : times.backward);
    // An action waits for what it needs before it works.
    if (trace != nullptr) trace->event(action.forward ? "forward" : "backward", mark - busy, mark, action.micro_batch, action.chunk);
  }

  const StepMessage all = agree_on(replica, {parallel::tree_sum<Sums>(replica.micro_batch_sums()), wishes}, messages);
  result.loss = all.sums.loss / all.sums.count;
  result.top1 = all.sums.top1 / all.sums.count;
  result.wishes = static_cast<std::uint32_t>(all.wishes);

  replica.reducer().finish(replica.context());
  lap(times.comm_exposed);

  const optim::StepOutcome outcome = replica.optimizer().step(replica.context(), rate, std::isfinite(result.loss));
  replica.store().publish(replica.context());
  result.grad_norm = outcome.grad_norm;
  result.applied = outcome.applied;
  lap(times.optimizer);
  times.total = mark - start;
  return result;
}

}  // namespace trireme::train
