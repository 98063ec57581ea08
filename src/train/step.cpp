#include "trireme/train/step.hpp"

#include <cmath>
#include <span>

#include "trireme/base/clock.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/device/profile_range.hpp"
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

/// Of replicas that go their own ways.
optim::StepOutcome joined_outcome(Replica& replica, const optim::StepOutcome& mine, StepMessages& room) {
  const comm::Communicator& data = replica.mesh().data;
  room.outcomes[static_cast<std::size_t>(data.rank())] = mine;
  comm::Engine& engine = replica.engine();
  engine.wait(engine.all_gather(data, reinterpret_cast<std::byte*>(room.outcomes.data()), room.outcome_bounds, "trireme/train/join_outcomes"));
  optim::StepOutcome joined;
  double squares = 0;
  bool bad = false;
  for (const optim::StepOutcome& outcome : room.outcomes) {
    joined.applied = joined.applied && outcome.applied;
    bad = bad || (!outcome.applied && !outcome.overflow);
    squares += outcome.grad_norm * outcome.grad_norm;
  }
  joined.overflow = !joined.applied && !bad;
  joined.grad_norm = std::sqrt(squares / data.size());
  return joined;
}

void average_replicas(Replica& replica) {
  replica.average()->average(replica.context());
  // One may have dropped a step that the others made: what all have made is in every slot, and what none has found too large is every one's loss scale.
  optim::Optimizer& optimizer = replica.optimizer();
  const auto least = [&](std::int64_t mine) { return replica.mesh().data.all_reduce(mine, comm::Reduction::min); };
  optimizer.set_updates(least(optimizer.updates()));
  if (!optimizer.scales_loss()) return;
  const optim::LossScale mine = optimizer.loss_scale();
  optimizer.set_loss_scale({static_cast<double>(least(static_cast<std::int64_t>(mine.scale))), least(mine.good_steps)});
}

/// Of values one after the other, in bytes.
template <class T>
std::vector<std::int64_t> bounds_of(const std::vector<T>& values) {
  std::vector<std::int64_t> bounds;
  for (std::size_t index = 0; index <= values.size(); ++index) bounds.push_back(static_cast<std::int64_t>(index * sizeof(T)));
  return bounds;
}

}  // namespace

StepMessages::StepMessages(const parallel::Mesh& mesh)
    : all(static_cast<std::size_t>(mesh.world.size())),
      sums(static_cast<std::size_t>(mesh.shape.data)),
      bounds(bounds_of(all)),
      outcomes(static_cast<std::size_t>(mesh.shape.data)),
      outcome_bounds(bounds_of(outcomes)) {}

StepResult train_step(Replica& replica, data::Loader& loader, const StepRequest& request, StepMessages& messages, monitor::Trace* trace) {
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

  come_by("step");
  replica.begin_step();
  for (const parallel::PipelineAction& action : replica.schedule()) {
    const data::MicroBatch* batch = Replica::takes_batch(action) ? &loader.next() : nullptr;
    lap(times.data);
    const ProfileRange range(action.forward ? "trireme/train/forward" : "trireme/train/backward");
    if (action.forward)
      replica.forward(action, batch);
    else
      replica.backward(action);
    const double busy = lap(action.forward ? times.forward : times.backward);
    // An action waits for what it needs before it works.
    if (trace != nullptr) trace->event(action.forward ? "forward" : "backward", mark - busy, mark, action.micro_batch, action.chunk);
  }

  const ProfileRange range("trireme/train/update");
  const Sums sums = parallel::tree_sum<Sums>(replica.micro_batch_sums());
  lap(times.backward);  // a device works behind the host, which waits for it here
  const StepMessage all = agree_on(replica, {sums, request.wishes, times.data + times.forward + times.backward}, messages);
  result.loss = all.sums.loss / all.sums.count;
  result.top1 = all.sums.top1 / all.sums.count;
  result.wishes = static_cast<std::uint32_t>(all.wishes);

  const parallel::GradientReducer::Sum gradient = replica.reducer().finish(replica.context(), std::isfinite(result.loss) && result.loss <= request.loss_limit);
  lap(times.comm_exposed);

  optim::StepOutcome outcome;
  if (gradient.there) outcome = replica.optimizer().step(replica.context(), request.rate, gradient.finite, gradient.scale);
  replica.store().publish(replica.context());
  if (replica.average() != nullptr) outcome = joined_outcome(replica, outcome, messages);
  if (request.averages) average_replicas(replica);
  result.grad_norm = outcome.grad_norm;
  result.applied = outcome.applied;
  result.overflow = outcome.overflow;
  result.loss_scale = gradient.scale;
  lap(times.optimizer);
  times.total = mark - start;
  return result;
}

}  // namespace trireme::train
