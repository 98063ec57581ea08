#include "trireme/train/run.hpp"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/device/device.hpp"
#include "trireme/monitor/environment_json.hpp"

namespace trireme::train {
namespace {

std::unique_ptr<data::Dataset> open_set(const std::string& folder, const std::string& key, const data::Dataset& train, const comm::Communicator& world) {
  if (folder.empty()) return nullptr;
  std::unique_ptr<data::Dataset> set;
  comm::together(world, [&] {
    set = std::make_unique<data::Dataset>(open_dataset(key, folder));
    validate_same_form(train.info(), set->info(), key, folder);
  });
  return set;
}

data::Dataset open_train(const deck::Deck& deck, const comm::Communicator& world) {
  std::unique_ptr<data::Dataset> set;
  comm::together(world, [&] {
    set = std::make_unique<data::Dataset>(open_dataset("data.train", deck.data.train));
    validate_dataset(deck.model, deck.data, set->info(), "data.train", deck.data.train);
  });
  return std::move(*set);
}

Device choose_device(const deck::Deck& deck) {
  ensure(deck.run.device != DeviceChoice::cuda, "run.device = \"cuda\": training on CUDA devices is not available in this version of Trireme; use \"cpu\"");
  return {DeviceKind::cpu, 0};
}

/// The host of each world rank. Collective.
std::vector<std::string> hosts_of(const comm::Environment& environment) {
  constexpr std::size_t longest = 256;  // HOST_NAME_MAX and some
  const auto size = static_cast<std::size_t>(environment.world().size());
  std::vector<char> mine(longest), all(longest * size);
  environment.host().copy(mine.data(), longest - 1);
  environment.world().all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> hosts;
  for (std::size_t rank = 0; rank < size; ++rank) hosts.emplace_back(&all[rank * longest]);
  return hosts;
}

void describe(const Run& run, const comm::Environment& environment, Log& log) {
  const data::DatasetInfo& set = run.train_set.info();
  log.info("run {}: {} weights in {} blocks, {} samples of {}x{}x{} in {} classes", run.deck.run.name, run.replica->model().weights(),
           run.replica->model().blocks().size(), set.samples, set.height, set.width, set.channels, set.class_count);
  log.info("layout: {} ranks = {} data x {} tensor x {} pipeline; {} samples a step = {} x {} of {} samples; {} steps an epoch", run.mesh.shape.ranks(),
           run.mesh.shape.data, run.mesh.shape.tensor, run.mesh.shape.pipeline, run.deck.batch.global, run.mesh.shape.data * run.layout.accumulation,
           run.layout.accumulation == 1 ? "micro-batches" : "accumulated micro-batches", run.deck.batch.micro, run.layout.steps_per_epoch);
  log.info("memory a rank: {} (weights {}, gradients {}, optimizer {}, activations {}, workspace {}); {} threads, communication {}",
           format_bytes(static_cast<double>(run.plan.total())), format_bytes(static_cast<double>(run.plan.parameters + run.plan.library)),
           format_bytes(static_cast<double>(run.plan.gradients)), format_bytes(static_cast<double>(run.plan.optimizer)),
           format_bytes(static_cast<double>(run.plan.activations + run.plan.flow[0] + run.plan.flow[1])), format_bytes(static_cast<double>(run.plan.workspace)),
           KokkosScope::threads(), run.mesh.world.size() == 1 ? "none" : run.engine.drive() == comm::Engine::Drive::thread ? "by a thread of its own" : "between blocks");
  const std::vector<std::string> hosts = hosts_of(environment);
  for (int rank = 0; rank < run.mesh.world.size() && run.mesh.world.size() > 1; ++rank) {
    const parallel::MeshPlace place = parallel::place_of(run.mesh.shape, rank);
    log.info("rank {}: stage {} data {} tensor {} on {}", rank, place.stage, place.data_rank, place.tensor_rank, hosts[static_cast<std::size_t>(rank)]);
  }
}

}  // namespace

checkpoint::Lease take_folder(const deck::Deck& deck, const comm::Environment& environment, Log& log) {
  comm::together(environment.world(), [&] {
    if (environment.world().rank() != 0) return;
    std::error_code error;
    std::filesystem::create_directories(deck.run.folder + "/checkpoints", error);
    ensure(!error, "run.folder = \"{}\": cannot be made: {}", deck.run.folder, error.message());
  });
  checkpoint::Lease lease(environment.world(), deck.run.folder, log);
  comm::together(environment.world(), [&] {
    if (environment.world().rank() != 0) return;
    log.open_file(deck.run.folder + "/log.txt");
    checkpoint::remove_exit_record(deck.run.folder);
  });
  return lease;
}

ReplicaOptions replica_options(const deck::Deck& deck, const data::DatasetInfo& train, const ResolvedLayout& layout) {
  ReplicaOptions options;
  options.model = deck.model;
  options.loss = deck.loss;
  options.optimizer = deck.optimizer;
  options.augment = deck.data.augment;
  options.image = {train.height, train.width, train.channels};
  options.classes = train.class_count;
  options.global = deck.batch.global;
  options.micro = deck.batch.micro;
  options.accumulation = layout.accumulation;
  options.bucket_bytes = static_cast<std::int64_t>(deck.parallel.bucket_mb * 1048576.0);
  options.compute = deck.precision.compute;
  options.deterministic = deck.run.deterministic;
  return options;
}

comm::Engine::Drive choose_drive(const comm::Environment& environment) {
  const int needed = environment.local_size() * (KokkosScope::threads() + 1);
  return environment.threads() && environment.world().size() > 1 && available_cores() >= needed ? comm::Engine::Drive::thread : comm::Engine::Drive::polled;
}

data::LoaderOptions evaluation_loader_options(const deck::Deck& deck, const data::Dataset& set, const parallel::Mesh& mesh) {
  data::LoaderOptions options;
  options.order = {.seed = deck.run.seed, .samples = set.info().samples, .shuffle = data::Shuffle::none};
  options.micro = deck.batch.micro;
  options.data_rank = mesh.place.data_rank;
  options.data_size = mesh.shape.data;
  options.workers = deck.data.workers;
  options.prefetch = deck.data.prefetch;
  options.training = false;
  return options;
}

Run::Run(const deck::Deck& the_deck, const comm::Environment& environment, Log& log)
    : deck(the_deck),
      deck_text(deck::write(the_deck)),
      train_set(open_train(the_deck, environment.world())),
      validation_set(open_set(the_deck.data.validation, "data.validation", train_set, environment.world())),
      test_set(open_set(the_deck.data.test, "data.test", train_set, environment.world())),
      layout(resolve_layout({the_deck.run, the_deck.batch, the_deck.parallel, the_deck.data, the_deck.schedule}, train_set.info(), environment.world().size())),
      mesh({.data = layout.data, .tensor = layout.tensor, .pipeline = layout.pipeline}, environment.world()),
      engine(choose_drive(environment)),
      cutter{.samples = train_set.info().samples, .global = the_deck.batch.global, .drop_last = the_deck.data.drop_last} {
  Device device;
  comm::together(mesh.world, [&] { device = choose_device(deck); });
  const ReplicaOptions options = replica_options(deck, train_set.info(), layout);
  plan = Replica::measure(options, mesh.place.data_rank, mesh.shape.data, device.kind);
  comm::together(mesh.world, [&] {
    replica = std::make_unique<Replica>(options, device, device.kind, plan, mesh.data, engine);
    data::LoaderOptions training = evaluation_loader_options(deck, train_set, mesh);
    training.order.shuffle = deck.data.shuffle;
    training.order.block = deck.data.shuffle_block;
    training.order.window = deck.data.shuffle_window;
    training.cutter = cutter;
    training.augmentation = {.seed = deck.run.seed, .crop_padding = deck.data.augment.random_crop, .flip = deck.data.augment.flip};
    training.training = true;
    train_loader = std::make_unique<data::Loader>(train_set, training);
    if (validation_set) validation_loader = std::make_unique<data::Loader>(*validation_set, evaluation_loader_options(deck, *validation_set, mesh));
    if (test_set) test_loader = std::make_unique<data::Loader>(*test_set, evaluation_loader_options(deck, *test_set, mesh));
  });
  describe(*this, environment, log);
}

std::int64_t Run::progress_steps() const { return std::max<std::int64_t>(1, std::min<std::int64_t>(layout.steps_per_epoch / 4, 100)); }

void Run::record_start(const comm::Environment& environment) const {
  const std::vector<std::string> hosts = hosts_of(environment);
  comm::together(mesh.world, [&] {
    if (mesh.world.rank() != 0) return;
    std::ofstream file(deck.run.folder + "/deck.toml.tmp");
    file << deck_text;
    file.close();
    ensure(file.good(), "{}/deck.toml: cannot be written", deck.run.folder);
    std::filesystem::rename(deck.run.folder + "/deck.toml.tmp", deck.run.folder + "/deck.toml");
    monitor::EnvironmentEntry entry;
    entry.time = utc_timestamp();
    entry.version = TRIREME_VERSION;
    entry.source_revision = TRIREME_REVISION;
    entry.compiler = TRIREME_COMPILER;
    entry.build_type = TRIREME_BUILD_TYPE;
    entry.mpi = environment.library();
    entry.hdf5 = TRIREME_HDF5_VERSION;
    entry.kokkos = TRIREME_KOKKOS_VERSION;
    entry.onednn = TRIREME_ONEDNN_VERSION;
    if (const char* job = std::getenv("SLURM_JOB_ID")) entry.job = fmt::format("slurm {}", job);
    entry.device = fmt::format("cpu: {} threads a rank", KokkosScope::threads());
    entry.layout = fmt::format("data {} x tensor {} x pipeline {}", mesh.shape.data, mesh.shape.tensor, mesh.shape.pipeline);
    entry.seed = std::to_string(deck.run.seed);
    entry.hosts = hosts;
    monitor::append_environment(deck.run.folder + "/environment.json", entry);
  });
}

}  // namespace trireme::train
