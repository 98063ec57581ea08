#include "trireme/train/step.hpp"

#include <cmath>
#include <span>

#include "trireme/base/clock.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::train {
namespace {

/// The sums of all replicas in the order of the tree, and the wishes of all ranks joined.
StepMessage agree_on(const parallel::Mesh& mesh, const StepMessage& mine, std::span<StepMessage> all) {
  TRIREME_EXPECT(all.size() == static_cast<std::size_t>(mesh.data.size()));
  mesh.data.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
  StepMessage joined{parallel::tree_sum(std::span<const StepMessage>(all), &StepMessage::sums), 0};
  for (const StepMessage& message : all) joined.wishes |= message.wishes;
  return joined;
}

}  // namespace

StepResult train_step(Replica& replica, data::Loader& loader, const parallel::Mesh& mesh, double rate, std::uint32_t wishes,
                      std::span<StepMessage> messages) {
  StepResult result;
  StepTimes& times = result.times;
  const double start = monotonic_seconds();
  double mark = start;
  const auto lap = [&mark](double& part) {
    const double now = monotonic_seconds();
    part += now - mark;
    mark = now;
  };

  replica.reducer().begin_step();
  for (std::int64_t j = 0; j < replica.options().accumulation; ++j) {
    const data::MicroBatch& batch = loader.next();
    lap(times.data);
    replica.forward(j, batch);
    lap(times.forward);
    replica.backward();
    lap(times.backward);
  }

  const StepMessage all = agree_on(mesh, {parallel::tree_sum<Sums>(replica.micro_batch_sums()), wishes}, messages);
  result.loss = all.sums.loss / all.sums.count;
  result.top1 = all.sums.top1 / all.sums.count;
  result.wishes = static_cast<std::uint32_t>(all.wishes);

  replica.reducer().finish(replica.context());
  lap(times.comm_exposed);

  const optim::StepOutcome outcome = replica.optimizer().step(replica.context(), rate, std::isfinite(result.loss));
  result.grad_norm = outcome.grad_norm;
  result.applied = outcome.applied;
  lap(times.optimizer);
  times.total = mark - start;
  return result;
}

}  // namespace trireme::train
