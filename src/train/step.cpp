#include "trireme/train/step.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "trireme/base/clock.hpp"
#include "trireme/parallel/tree.hpp"

namespace trireme::train {
namespace {

/// What a rank tells all others once a step.
struct Message {
  Sums sums;
  std::uint64_t wishes = 0;
};

/// The sums of all replicas in the order of the tree, and the wishes of all ranks joined.
Message agree_on(const parallel::Mesh& mesh, const Message& mine) {
  constexpr int on_stack = 64;
  Message few[on_stack];
  std::vector<Message> many;
  std::span<Message> all(few, on_stack);
  if (mesh.data.size() > on_stack) {
    many.resize(static_cast<std::size_t>(mesh.data.size()));
    all = many;
  }
  all = all.first(static_cast<std::size_t>(mesh.data.size()));
  mesh.data.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(all));
  Message joined;
  for (const Message& message : all) joined.wishes |= message.wishes;
  struct Adder {  // tree_sum over the messages' sums without a copy
    static Sums sum(std::span<const Message> part) {
      if (part.size() == 1) return part[0].sums;
      const std::size_t half = part.size() / 2;
      return sum(part.first(half)) + sum(part.subspan(half));
    }
  };
  joined.sums = Adder::sum(all);
  return joined;
}

}  // namespace

StepResult train_step(Replica& replica, data::Loader& loader, const parallel::Mesh& mesh, double rate, std::uint32_t wishes) {
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

  const Message all = agree_on(mesh, {parallel::tree_sum<Sums>(replica.micro_batch_sums()), wishes});
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
