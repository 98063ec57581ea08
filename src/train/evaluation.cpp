#include "trireme/train/evaluation.hpp"

#include <memory>
#include <span>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/train/restore.hpp"
#include "trireme/train/run.hpp"
#include "trireme/train/trainer.hpp"

namespace trireme::train {

Metrics evaluate(Replica& replica, data::Loader& loader, const parallel::Mesh& mesh) {
  // Added micro-batch by micro-batch in the order of the set, whatever the number of ranks: round r of rank d is micro-batch r * D + d.
  const auto rounds = static_cast<std::size_t>(loader.rounds());
  std::vector<Sums> mine(rounds), all(rounds * static_cast<std::size_t>(mesh.data.size()));
  loader.start({});
  comm::together(mesh.world, [&] {
    for (Sums& sums : mine) sums = replica.evaluate(loader.next());
  });
  mesh.data.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  Sums total;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(mesh.data.size()); ++rank) total = total + all[rank * rounds + round];
  }
  const double count = total.count > 0 ? total.count : 1;
  return {total.loss / count, total.top1 / count, total.top5 / count, static_cast<std::int64_t>(total.count)};
}

Metrics evaluate_checkpoint(const deck::Deck& deck, const std::string& checkpoint, const std::string& split, const comm::Environment& environment, Log& log) {
  const std::string folder = split == "train" ? deck.data.train : split == "validation" ? deck.data.validation : split == "test" ? deck.data.test : "";
  validate(split == "train" || split == "validation" || split == "test", "--split {}: no such split; train, validation or test", split);
  validate(!folder.empty(), "--split {}: the deck names no data.{}", split, split);
  std::unique_ptr<data::Dataset> train_set, set;
  comm::together(environment.world(), [&] {
    train_set = std::make_unique<data::Dataset>(open_dataset("data.train", deck.data.train));  // its classes are the model's
    set = std::make_unique<data::Dataset>(open_dataset("data." + split, folder));
    validate_dataset(deck.model, deck.data, train_set->info(), "data.train", deck.data.train);
    validate_same_form(train_set->info(), set->info(), "data." + split, folder);
  });
  const parallel::Mesh mesh({.data = environment.world().size()}, environment.world());
  ResolvedLayout layout;
  layout.data = mesh.shape.data;
  ReplicaOptions options = replica_options(deck, train_set->info(), layout);
  options.trains = false;
  comm::Engine engine(comm::Engine::Drive::polled);
  const MemoryPlan plan = Replica::measure(options, mesh.place.data_rank, mesh.shape.data, DeviceKind::cpu);
  std::unique_ptr<Replica> replica;
  std::unique_ptr<data::Loader> loader;
  comm::together(mesh.world, [&] {
    replica = std::make_unique<Replica>(options, Device{DeviceKind::cpu, 0}, DeviceKind::cpu, plan, mesh.data, engine);
    loader = std::make_unique<data::Loader>(*set, evaluation_loader_options(deck, *set, mesh));
  });
  load_weights(*replica, mesh, checkpoint);
  log.info("evaluates {} on {} samples of {}", checkpoint, set->info().samples, folder);
  return evaluate(*replica, *loader, mesh);
}

}  // namespace trireme::train
