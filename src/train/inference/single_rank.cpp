// SPDX-License-Identifier: Apache-2.0
#include "single_rank.hpp"

#include "train/run/restore.hpp"
#include "trireme/base/check.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/run/run.hpp"

namespace trireme::train {
namespace {

MemoryPlan plan_memory(const ReplicaOptions& options, const parallel::Mesh& mesh, Device device,
                       Log& log) {
  MemoryPlan plan = Replica::measure(options, mesh.shape, 0, device.kind);
  log.info("memory: {}", describe_memory(plan));
  return plan;
}

}  // namespace

deck::Deck single_rank_deck(const checkpoint::Contents& contents, const std::string& path,
                            Log& log) {
  validate(!contents.info.deck.empty(), "{}: holds no deck, so its model is unknown", path);
  deck::Deck deck = stored_deck(contents, path, log).value();
  deck.batch = {.global = 1, .micro = 1};
  deck.parallel = {};
  deck.run.device = deck::DeviceChoice::automatic;
  return deck;
}

ReplicaOptions single_rank_options(const deck::Deck& deck, const data::DatasetInfo& train) {
  ReplicaOptions options = make_replica_options(deck, train, {});
  options.trains = false;
  options.optimizer.ema = 0;
  return options;
}

SingleRank::SingleRank(const ReplicaOptions& options, Device device, Log& log)
    : mesh({}, comm::Communicator()),
      engine(comm::Engine::ProgressMode::polled),
      replica(options, device, device.kind, plan_memory(options, mesh, device, log), mesh, engine) {
}

}  // namespace trireme::train
