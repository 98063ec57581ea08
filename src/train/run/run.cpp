// SPDX-License-Identifier: Apache-2.0
//
// Prepares a training run: chooses the device and communication thread, opens datasets, plans and
// allocates memory, connects the engine, and logs a description.
//
// train() calls the constructor of Run when it holds the run folder. `trireme check`, evaluate and
// generate use the free functions.
#include "trireme/train/run/run.hpp"

#include <algorithm>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "reader_threads.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/host.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/philox.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/device/hardware.hpp"
#include "trireme/model/family.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/optim/groups.hpp"
#include "trireme/train/advice.hpp"
#include "trireme/train/datasets.hpp"
#include "trireme/train/records/describe.hpp"
#include "trireme/train/step/sum_order.hpp"

namespace trireme::train {
namespace {

/// Opens a validation or test set; null if the deck names none. Collective; throws InputError on
/// all ranks.
std::unique_ptr<data::Dataset> open_set(const deck::Deck& deck, const std::string& folder,
                                        const std::string& key, const data::Dataset& train,
                                        const comm::Communicator& world) {
  if (folder.empty()) return nullptr;
  auto set =
      std::make_unique<data::Dataset>(open_dataset(world, key, folder, evaluation_form(deck)));
  comm::together(world, [&] {
    validate_dataset(deck.model, deck.data, set->info(), key, folder);
    validate_same_form(train.info(), set->info(), key, folder);
  });
  return set;
}

/// Opens the training set. Collective; throws InputError on all ranks.
data::Dataset open_train(const deck::Deck& deck, const comm::Communicator& world) {
  data::Dataset set =
      open_dataset(world, "data.train", deck.data.train, training_form(deck), deck.data.verify > 0);
  comm::together(world, [&] {
    validate_dataset(deck.model, deck.data, set.info(), "data.train", deck.data.train);
  });
  return set;
}

/// Returns the deck with the vocabulary of the training set if it has none.
deck::Deck with_vocabulary(deck::Deck deck, const data::DatasetInfo& train) {
  const model::Family& family = family_of(deck.model);
  if (family.vocabulary(deck.model) == 0) family.set_vocabulary(deck.model, train.vocabulary);
  return deck;
}

/// Warns about layers whose extents do not fit float8; their products are computed in bfloat16.
void warn_about_bfloat16(const deck::Deck& deck, Log& log) {
  if (deck.precision.compute != deck::ComputePrecision::float8) return;
  const model::Family& family = family_of(deck.model);
  std::vector<model::Extent> extents = family.product_extents(deck.model);
  extents.insert(extents.begin(), {"batch.micro x model.context, the rows",
                                   deck.batch.micro * family.context(deck.model)});
  for (const auto& [what, extent] : extents) {
    if (!ops::Linear::float8_supports(extent))
      log.warn(
          "precision.compute = \"float8\": {} = {} is not a multiple of {}: products of that "
          "extent "
          "are in bfloat16",
          what, extent, ops::Linear::float8_multiple);
  }
}

/// Logs model, layout, memory, device and ranks at the start of a run. Collective.
void describe(const Run& run, const comm::Environment& environment, Log& log) {
  const data::DatasetInfo& set = run.train_set.info();
  const model::Model& model = run.replica->model();
  const Answer& answer = run.replica->options().answer();
  const std::string form =
      set.kind == data::DatasetKind::tokens
          ? fmt::format("{} tokens of a vocabulary of {}", set.context,
                        run.replica->options().outputs.count)
          : fmt::format("{}x{}x{} {}", set.height, set.width, set.channels,
                        fmt::format("{} {}", answer.has_units ? "with" : "in",
                                    data::outputs_in_words(set.target, answer)));
  log.info("run {}: {} in {}, {} of {}", run.deck.run.name,
           counted(model.weight_count(), "weight", "weights"),
           counted(model.block_count(), "block", "blocks"),
           run.deck.data.samples == 0 ? counted(set.samples, "sample", "samples")
                                      : fmt::format("{} of {} (data.samples)", run.layout.samples,
                                                    counted(set.samples, "sample", "samples")),
           form);
  if (!run.deck.optimizer.groups.empty())
    log.info("groups: {}", optim::describe_groups(run.deck.optimizer.groups, model.parameters()));
  if (const std::string rules = optim::describe_rules(run.deck.optimizer, model.parameters());
      !rules.empty())
    log.info("rules: {}", rules);
  log.info("layout: {}", describe_layout(run.deck.parallel, run.layout));
  if (run.layout.pipeline > 1)
    log.info("stages: {}", describe_pipeline(run.deck.parallel, run.layout));
  log.info("step: {}; {} per epoch", describe_step(run.deck.batch.micro, run.layout),
           counted(run.layout.steps_per_epoch, "step", "steps"));
  if (!run.layout.scale.rows.empty()) log.info("ramp: {}", describe_ramp(run.layout));
  log.info("sums over replicas: {}",
           describe_sum_order(choose_sum_order(run.replica->options(), run.device.kind,
                                               model.weight_count(), run.layout.data)));
  log.info("memory per rank: {}; threads: {}, communication: {}", describe_memory(run.plan),
           KokkosScope::threads(),
           run.mesh.world.size() == 1 ? "none"
           : run.engine.progress_mode() == comm::Engine::ProgressMode::thread
               ? "by a separate thread"
               : "between blocks");
  if (run.device.kind != DeviceKind::cpu)
    log.info("device: {}", to_string(describe_device(run.device)));
  warn_about_bfloat16(run.deck, log);
  for (const std::string& warning : schedule_warnings(run.deck)) log.warn("{}", warning);
  if (const int group = run.layout.batch_norm_ranks; group > 1)
    log.info(
        "batch norm: {}",
        describe_batch_norm(run.deck.batch, run.layout,
                            batch_norm_bytes(model.parameters(), run.replica->options(), group)));
  else if (const auto remark = batch_norm_remark(run.deck))
    log.info("{}", *remark);
  if (run.deck.optimizer.ema > 0)
    log.info("average of the weights: decay {}; used for evaluation and for the best checkpoint",
             run.deck.optimizer.ema);
  const std::vector<std::string> hosts = gather_hosts(environment);
  for (int rank = 0; rank < run.mesh.world.size() && run.mesh.world.size() > 1; ++rank) {
    const parallel::MeshCoordinates place = parallel::coordinates_of(run.mesh.shape, rank);
    log.info("rank {}: stage {} data {} tensor {} on {}", rank, place.stage, place.data_rank,
             place.tensor_rank, hosts[static_cast<std::size_t>(rank)]);
  }
}

/// Throws InputError if the datasets have different classes or tokenizers.
void compare_meanings_of_sets(const Run& run, Log& log) {
  const data::DataOptions& keys = run.deck.data;
  std::vector<data::LabelMeaning> sides{
      data::meaning_of(run.train_set.info(), "data.train", keys.train)};
  if (run.validation_set)
    sides.push_back(
        data::meaning_of(run.validation_set->info(), "data.validation", keys.validation));
  if (run.test_set) sides.push_back(data::meaning_of(run.test_set->info(), "data.test", keys.test));
  for (const std::string& line : data::validate_same_meaning(sides)) log.info("{}", line);
}

/// Warns if ranks share a GPU. Collective; throws Failure on all ranks if they have devices of
/// different kinds.
void compare_devices(const comm::Communicator& world, Device device, Log& log) {
  struct Choice {
    std::uint64_t kind = 0, identity = 0;
  };
  const Choice mine{static_cast<std::uint64_t>(device.kind), random_key(0, identity_of(device))};
  std::vector<Choice> all(static_cast<std::size_t>(world.size()));
  world.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  std::set<std::uint64_t> devices;
  comm::together(world, [&] {
    for (const Choice& choice : all) {
      ensure(choice.kind == mine.kind,
             "run.device = \"auto\": some ranks find a CUDA device and others none; start the run "
             "on nodes of one kind");
      devices.insert(choice.identity);
    }
  });
  if (device.kind == DeviceKind::cuda && devices.size() < all.size())
    log.warn("{} ranks share {} GPUs: one rank per GPU is faster", all.size(), devices.size());
}

/// Returns the layouts of the rows of batch.ramp behind that of the run.
std::vector<ResolvedLayout> later_rows(const Run& run) {
  const deck::Deck& deck = run.deck;
  std::vector<ResolvedLayout> rows;
  if (run.layout.row_end == 0) return rows;
  rows = resolve_rows({deck.run, deck.batch, deck.parallel, deck.data, deck.schedule, deck.model},
                      run.train_set.info(), run.mesh.world.size());
  std::erase_if(rows,
                [&](const ResolvedLayout& row) { return row.row_begin <= run.layout.row_begin; });
  return rows;
}

/// Throws InputError or Failure if the device has too little memory for the plan, or for the plan
/// of a later row of batch.ramp, which must not fail after hours. Warns if the host has too little.
void validate_memory(const Run& run, const ReplicaOptions& options,
                     const comm::Environment& environment, Log& log) {
  const parallel::MeshShape& shape = run.mesh.shape;
  const int rank = run.mesh.world.rank();
  const DeviceKind kind = run.device.kind;
  const std::int64_t memory_bytes = describe_device(run.device).memory_bytes;
  const auto check_memory = [&](const MemoryPlan& some, const ReplicaOptions& some_options) {
    const std::optional<std::string> shortage =
        memory_shortage(some, some_options, shape, rank, kind, memory_bytes);
    ensure(!shortage || kind != DeviceKind::cuda, "{}", shortage.value_or(""));
    validate(!shortage, "{}", shortage.value_or(""));
  };
  check_memory(run.plan, options);
  for (const ResolvedLayout& row : later_rows(run)) {
    const ReplicaOptions row_options = make_replica_options(run.deck, run.train_set.info(), row);
    check_memory(Replica::measure(row_options, shape, rank, kind), row_options);
  }
  const std::int64_t ranks_here = environment.local_size(),
                     bytes = run.plan.total() + run.plan.host_total();
  if (kind == DeviceKind::cpu && bytes > memory_bytes / ranks_here)
    log.warn(
        "the {} ranks on {} need {}, but this host has {} of memory: one may be killed; use a "
        "smaller batch.micro, or more hosts",
        ranks_here, environment.host(), format_bytes(ranks_here * bytes),
        format_bytes(memory_bytes));
}

data::LoaderOptions training_loader_options(const Run& run, int readers) {
  const deck::Deck& deck = run.deck;
  data::LoaderOptions options =
      evaluation_loader_options(deck, run.train_set, run.mesh, run.device, readers);
  options.order.samples = run.layout.samples;
  options.order.subset_of = deck.data.samples > 0 ? run.train_set.info().samples : 0;
  options.order.shuffle = deck.data.shuffle;
  options.order.block = deck.data.shuffle_block;
  options.order.window = deck.data.shuffle_window;
  options.batching = run.layout.batching;
  options.interleaved_ranks = run.layout.batch_norm_ranks;
  const data::DatasetInfo& info = run.train_set.info();
  options.augmentation = training_pipeline(deck).augmentation({info.height, info.width});
  options.training = true;
  // The tensor ranks of a replica read the same samples, so one of them is enough.
  const parallel::MeshCoordinates& place = run.mesh.coordinates;
  options.verify = place.stage == 0 && place.tensor_rank == 0 ? deck.data.verify : 0;
  return options;
}

/// Opens the loaders of the sets that the deck names.
void open_loaders(Run& run, int readers) {
  const auto open = [&](const data::Dataset& set, std::int64_t samples = 0) {
    data::LoaderOptions options =
        evaluation_loader_options(run.deck, set, run.mesh, run.device, readers);
    if (samples > 0) options.order.subset_of = std::exchange(options.order.samples, samples);
    return std::make_unique<data::Loader>(set, options);
  };
  run.train_loader =
      std::make_unique<data::Loader>(run.train_set, training_loader_options(run, readers));
  const std::int64_t subset = run.deck.evaluate.subset;
  if (run.validation_set) run.validation_loader = open(*run.validation_set);
  if (run.validation_set && subset > 0) run.subset_loader = open(*run.validation_set, subset);
  if (run.test_set) run.test_loader = open(*run.test_set);
}

/// Connects the engine, which registers the memory allocated so far, and describes the run.
/// Collective.
void connect(Run& run, const comm::Environment& environment, Log& log) {
  const comm::Engine::Transport transport =
      run.engine.connect(run.mesh.world, engine_connections(run.replica->options(), run.mesh));
  describe(run, environment, log);
  if (run.mesh.world.size() == 1 || run.device.kind == DeviceKind::cpu) return;
  if (transport == comm::Engine::Transport::staged)
    log.info("device memory is sent through host memory and MPI");
  else if (run.engine.registration_error().empty())
    log.info("device memory is sent by NCCL, {} of it registered",
             format_bytes(run.engine.registered_bytes()));
  else
    log.info("device memory is sent by NCCL, unregistered: {}", run.engine.registration_error());
}

}  // namespace

std::vector<std::string> gather_hosts(const comm::Environment& environment) {
  return environment.world().all_gather(environment.host());
}

ReplicaOptions make_replica_options(const deck::Deck& deck, const data::DatasetInfo& train,
                                    const ResolvedLayout& layout) {
  ReplicaOptions options;
  options.model = deck.model;
  options.loss = deck.loss;
  options.optimizer = deck.optimizer;
  options.augment = deck.data.augment;
  if (options.tokens()) {
    const model::Family& family = family_of(options.model);
    const std::int64_t given = family.vocabulary(options.model);
    options.outputs.count = given > 0 ? given : train.vocabulary;
    family.set_vocabulary(options.model, options.outputs.count);
  } else {
    options.image = {train.height, train.width, train.channels};
    options.pixel_type = train.pixel_type;
    options.preparation = data::preparation_hash(train);
    options.outputs = train.target;
    const auto weights = static_cast<std::int64_t>(deck.loss.class_weights.size());
    validate(weights == 0 || weights == options.outputs.count,
             "loss.class_weights has {}, but data.train = \"{}\" has {}; give one for each class",
             counted(weights, "number", "numbers"), deck.data.train,
             counted(options.outputs.count, "class", "classes"));
    options.target = deck.target;
    // The evaluation at the end of the run counts by class.
    if (!deck.data.validation.empty() || !deck.data.test.empty())
      options.kept_rows = KeptRows::logits;
  }
  options.global = layout.global;
  options.micro = deck.batch.micro;
  options.accumulation = layout.accumulation;
  options.bucket_bytes = static_cast<std::int64_t>(deck.parallel.bucket_mb * 1048576.0);
  options.pipeline_schedule = deck.parallel.pipeline_schedule;
  options.pipeline_chunks = deck.parallel.pipeline_chunks;
  options.shard = deck.parallel.shard;
  options.sequence = deck.parallel.sequence;
  options.recompute = deck.parallel.recompute;
  options.offload = deck.parallel.offload;
  options.sync = deck.parallel.sync;
  options.outer_momentum = deck.parallel.outer_momentum;
  options.compute = deck.precision.dtype();
  options.reduce = deck.precision.reduce;
  if (options.compute == DType::float16) options.loss_scale = deck.precision.loss_scale;
  options.tfloat32 = deck.precision.compute == deck::ComputePrecision::tfloat32;
  options.float8 = deck.precision.compute == deck::ComputePrecision::float8;
  options.seed = deck.run.seed;
  options.deterministic = deck.run.deterministic;
  options.graphs = deck.run.graphs;
  options.fusions = deck.debug.fusions;
  options.fused_softmax = deck.debug.fused_softmax;
  options.joined_norms = deck.debug.joined_norms;
  options.async_checkpoints = deck.checkpoint.asynchronous;
  options.noise_scale = deck.monitor.noise_scale.has_value();
  options.tensor_norms = deck.monitor.tensors.has_value();
  return options;
}

comm::Engine::ProgressMode choose_progress_mode(int cores, int ranks_sharing, int threads) {
  return cores >= ranks_sharing * (threads + 1) ? comm::Engine::ProgressMode::thread
                                                : comm::Engine::ProgressMode::polled;
}

comm::Engine::ProgressMode choose_progress_mode(const comm::Environment& environment) {
  const comm::Communicator& world = environment.world();
  if (world.size() == 1) return comm::Engine::ProgressMode::polled;
  int threads = 1;
  comm::together(world, [&] { threads = KokkosScope::default_threads(); });
  const int ranks_sharing = ranks_sharing_cores(environment);
  if (!environment.thread_multiple()) return comm::Engine::ProgressMode::polled;
  return choose_progress_mode(available_cores(), ranks_sharing, threads);
}

DeviceKind planned_device(const deck::Deck& deck) {
  if (deck.debug.device == deck::DebugDevice::emulated) return DeviceKind::emulated;
  const bool cuda = deck.run.device == deck::DeviceChoice::cuda ||
                    (deck.run.device == deck::DeviceChoice::automatic && built_with_cuda());
  return cuda ? DeviceKind::cuda : DeviceKind::cpu;
}

Device choose_device(const deck::Deck& deck, int local_rank) {
  if (deck.debug.device == deck::DebugDevice::emulated) return {DeviceKind::emulated, 0};
  if (deck.run.device == deck::DeviceChoice::cpu) return {DeviceKind::cpu, 0};
  std::string why;
  const bool there = cuda_device_count(&why) > 0;
  ensure(there || deck.run.device == deck::DeviceChoice::automatic,
         "run.device = \"cuda\": no CUDA device: {}. To train on the CPU, use the preset release "
         "with \"cpu\"",
         why);
  return there ? choose_cuda_device(local_rank) : Device{DeviceKind::cpu, 0};
}

void validate_precision(const deck::Deck& deck, DeviceKind device) {
  validate(deck.precision.compute != deck::ComputePrecision::tfloat32 || device == DeviceKind::cuda,
           "precision.compute = \"tfloat32\": is computed by the tensor cores of a GPU, but "
           "here the device is {}; use \"float32\", or start on a GPU with "
           "the program of the preset cuda-release",
           device == DeviceKind::emulated ? "emulated" : "the CPU");
}

void validate_precision(const deck::Deck& deck, const DeviceDescription& device) {
  validate_precision(deck, device.device.kind);
  if (deck.precision.compute != deck::ComputePrecision::float8 ||
      device.device.kind != DeviceKind::cuda)
    return;
  constexpr double least = 8.9;
  validate(std::stod(device.compute_capability) >= least,
           "precision.compute = \"float8\": needs a GPU of compute capability {} or "
           "above (Ada, Hopper and newer), but {} has {}; use \"bfloat16\"",
           least, device.name, device.compute_capability);
}

data::LoaderOptions evaluation_loader_options(const deck::Deck& deck, const data::Dataset& set,
                                              const parallel::Mesh& mesh, Device device,
                                              int reader_threads) {
  data::LoaderOptions options;
  options.order = {
      .seed = deck.run.seed, .samples = set.info().samples, .shuffle = data::Shuffle::none};
  options.micro = deck.batch.micro;
  options.data_rank = mesh.coordinates.data_rank;
  options.data_size = mesh.shape.data;
  options.workers = reader_threads;
  options.prefetch = deck.data.prefetch;
  options.training = false;
  options.device = device;
  options.inputs = mesh.coordinates.stage == 0;
  options.labels = mesh.coordinates.stage + 1 == mesh.shape.pipeline;
  return options;
}

std::int64_t context_length(const deck::Deck& deck) {
  return family_of(deck.model).context(deck.model);
}

data::ImagePipeline training_pipeline(const deck::Deck& deck) {
  return data::ImagePipeline::training(deck.data.augment, deck.run.seed, deck.data.decode);
}

data::SampleForm training_form(const deck::Deck& deck) {
  return {context_length(deck), training_pipeline(deck).form(), deck.data.hdf5, deck.target};
}

data::SampleForm evaluation_form(const deck::Deck& deck) {
  return {context_length(deck), data::ImagePipeline::evaluation(deck.data.augment).form(),
          deck.data.hdf5, deck.target};
}

Run::Run(const deck::Deck& the_deck, const comm::Environment& environment, comm::Engine& the_engine,
         Log& log, std::int64_t steps_done)
    : train_set(open_train(the_deck, environment.world())),
      deck(with_vocabulary(the_deck, train_set.info())),
      deck_text(deck::write(deck)),
      validation_set(open_set(the_deck, the_deck.data.validation, "data.validation", train_set,
                              environment.world())),
      test_set(open_set(the_deck, the_deck.data.test, "data.test", train_set, environment.world())),
      layout(resolve_layout({the_deck.run, the_deck.batch, the_deck.parallel, the_deck.data,
                             the_deck.schedule, the_deck.model},
                            train_set.info(), environment.world().size(), steps_done)),
      mesh(layout.mesh_shape(), environment.world()),
      engine(the_engine) {
  // The members above opened the datasets and resolved the layout.
  comm::together(mesh.world, [&] {
    device = choose_device(deck, environment.local_rank());
    validate_precision(deck, describe_device(device));
    if (validation_set) validate_subset(deck.evaluate, validation_set->info());
    compare_meanings_of_sets(*this, log);
  });
  compare_devices(mesh.world, device, log);
  enter_phase("allocate");
  const ReplicaOptions options = make_replica_options(deck, train_set.info(), layout);
  plan = Replica::measure(options, mesh.shape, mesh.world.rank(), device.kind);
  const int readers = choose_reader_threads(deck, environment, device, log);
  if (deck.data.workers == 0)
    log.info("data.workers = \"auto\": {} on rank 0",
             counted(readers, "reader thread", "reader threads"));
  comm::together(mesh.world, [&] {
    validate_memory(*this, options, environment, log);
    replica = std::make_unique<Replica>(options, device, device.kind, plan, mesh, engine);
    open_loaders(*this, readers);
  });
  connect(*this, environment, log);
}

std::uint64_t Run::training_identity() const {
  const std::uint64_t identity = train_set.info().identity;
  return deck.data.samples == 0
             ? identity
             : mix64(identity ^ mix64(static_cast<std::uint64_t>(deck.data.samples)));
}

std::int64_t Run::progress_steps() const {
  return std::max<std::int64_t>(1, std::min<std::int64_t>(layout.steps_per_epoch / 4, 100));
}

}  // namespace trireme::train
