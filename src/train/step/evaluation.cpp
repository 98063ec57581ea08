// SPDX-License-Identifier: Apache-2.0
//
// Evaluation during training (evaluate) and of a checkpoint (`trireme evaluate`,
// evaluate_checkpoint).
//
// Each data rank evaluates its micro-batches in groups, of up to 64 or fewer that keep large
// results, whose sums are read together. All ranks then gather the sums and add them in the order
// of the dataset, so the result does not depend on the number of ranks.
#include "trireme/train/step/evaluation.hpp"

#include <algorithm>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "train/run/reader_threads.hpp"
#include "train/run/restore.hpp"
#include "trireme/base/check.hpp"
#include "trireme/base/phase.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/labels/label_meaning.hpp"
#include "trireme/device/profile_range.hpp"
#include "trireme/monitor/trace.hpp"
#include "trireme/train/datasets.hpp"
#include "trireme/train/run/run.hpp"
#include "trireme/train/run/trainer.hpp"

namespace trireme::train {

double Metrics::value_of(std::string_view metric) const {
  if (metric == "loss") return loss;
  if (scores) return scores->value_of(metric);
  if (metric == "top1") return top1;
  if (metric == "top5") return top5;
  TRIREME_EXPECT(metric == "perplexity");
  return perplexity();
}

std::string describe(const Metrics& metrics, const Answer& answer) {
  std::vector<double> values;
  for (const std::string_view word : answer.metrics) values.push_back(metrics.value_of(word));
  std::string text =
      fmt::format("{}, {}", describe(answer, values),
                  answer.is_tokens() ? counted(metrics.num_labels, "token", "tokens")
                                     : counted(metrics.num_samples, "sample", "samples"));
  if (metrics.counted < 1)
    text += fmt::format(" ({:.2f} % of {} count)", 100 * metrics.counted,
                        answer.has_units ? "their numbers" : "their pixels");
  return text;
}

EvaluationPass start_pass(data::Loader& loader) {
  loader.start({});
  return {loader.micro_batches_per_pass(),
          [&loader](std::exception_ptr& error) -> const data::MicroBatch& {
            return loader.next(error);
          }};
}

Metrics evaluate(Replica& replica, data::Loader& loader,
                 const std::function<void()>& before_error) {
  return evaluate(replica, start_pass(loader), before_error);
}

namespace {

// Outputs of micro-batches that the receiver of rows keeps, at most, before it can write them.
constexpr std::int64_t max_group_bytes = std::int64_t{64} << 20;

/// Returns the micro-batches of a group whose outputs have so many bytes: at least one.
std::size_t group_within(std::int64_t bytes, const ReplicaOptions& options) {
  const std::int64_t outputs = options.micro * options.outputs.count * options.outputs.places(),
                     fitting =
                         bytes / std::max<std::int64_t>(1, outputs * std::int64_t{sizeof(float)});
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(fitting, 1, PipelineStage::max_unread_micro_batches));
}

/// Evaluates without scores.
Metrics evaluate_losses(Replica& replica, const EvaluationPass& batches,
                        const std::function<void()>& before_error) {
  // Sums are added per micro-batch in the order of the set, for any number of ranks: round r of
  // data rank d is micro-batch r * D + d.
  const parallel::Mesh& mesh = replica.mesh();
  const auto rounds = static_cast<std::size_t>(batches.rounds);
  std::vector<Sums> mine(rounds), all(rounds * static_cast<std::size_t>(mesh.data.size()));
  // 1. Switch to the averaged weights and evaluate this rank's micro-batches.
  const ProfileRange range("trireme/train/evaluate", monitor::Trace::step_lane.data());
  replica.weight_update().swap_ema();
  // A rank then computes a micro-batch without the others.
  const bool computes_alone = mesh.shape.ranks() == mesh.shape.data &&
                              replica.options().shard != parallel::ShardKind::parameters;
  std::exception_ptr unreadable;
  std::int64_t samples = 0;  // of this data rank
  const auto evaluate_group = [&](std::span<Sums> group) {
    for (std::size_t number = 0; number < group.size(); ++number) {
      enter_phase("evaluation");
      if (unreadable && computes_alone) return;
      const data::MicroBatch& batch = batches.next(unreadable);
      if (unreadable && computes_alone) return;
      const int entry = static_cast<int>(number);
      samples += batch.valid_rows;
      std::vector<float> mirrored;
      if (batches.views == ImageViews::with_mirror_image)
        mirrored = mirrored_logits(replica, batch, entry);
      replica.stage().evaluate(batch, entry, batches.sink != nullptr);
      if (batches.sink) pass_rows(replica, batch, batches.sink, mirrored);
    }
    replica.stage().read_sums(group);
  };
  const std::size_t most = batches.between_groups ? group_within(max_group_bytes, replica.options())
                                                  : PipelineStage::max_unread_micro_batches;
  for (std::size_t first = 0; first < rounds; first += most) {
    const std::span group = std::span(mine).subspan(first, std::min(most, rounds - first));
    // Otherwise other ranks wait for activations or weights of this one. Unreadable samples are
    // replaced by padding until the end of the pass. Any other error ends the job on its rank.
    if (computes_alone)
      comm::together(mesh.world, [&] { evaluate_group(group); });
    else
      evaluate_group(group);
    if (!batches.between_groups) continue;
    replica.engine().quiesce();  // It may have transfers that need this thread.
    batches.between_groups();
  }
  replica.engine().quiesce();
  replica.weight_update().swap_ema();
  const std::int64_t failed =
      mesh.world.all_reduce(std::int64_t{unreadable ? 1 : 0}, comm::Reduction::max);
  if (failed != 0 && before_error) before_error();
  if (failed != 0)
    comm::together(mesh.world, [&] {
      if (unreadable) std::rethrow_exception(unreadable);
    });
  // 2. Gather the sums of all data ranks, and add them in the order of the set.
  mesh.data.all_gather(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)));
  Sums total;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(mesh.data.size()); ++rank)
      total = total + all[rank * rounds + round];
  }
  mesh.pipeline.broadcast(std::as_writable_bytes(std::span(&total, 1)),
                          mesh.shape.pipeline - 1);  // The last stage holds the sums.
  const double count = total.count;                  // 0: nothing is known, and the means are NaN
  return {total.loss / count, total.top1 / count, total.top5 / count,
          static_cast<std::int64_t>(total.count),
          mesh.data.all_reduce(samples, comm::Reduction::sum)};
}

}  // namespace

Metrics evaluate(Replica& replica, const EvaluationPass& batches,
                 const std::function<void()>& before_error) {
  const ReplicaOptions& options = replica.options();
  if (!options.answer().is_scored()) return evaluate_losses(replica, batches, before_error);
  const std::unique_ptr<Scorer> scorer = make_scorer(options.target, options.outputs.count);
  EvaluationPass pass = batches;
  pass.sink = [&](const EvaluatedRows& rows) {
    scorer->add(rows);
    if (batches.sink) batches.sink(rows);
  };
  Metrics metrics = evaluate_losses(replica, pass, before_error);
  metrics.scores = scorer->gather(replica.mesh().world);
  if (options.answer().is_map && metrics.num_samples > 0)
    metrics.counted = static_cast<double>(metrics.num_labels) /
                      static_cast<double>(metrics.num_samples * options.labels_per_sample());
  return metrics;
}

namespace {

/// Returns options for forward only, one micro-batch at a time. Uses the deck's layout if the
/// number of ranks is a multiple of a replica's, else one replica per rank. Sets `shape`
/// accordingly. `keeps_rows`: the results of single rows will be read. Throws InputError if the
/// model or the micro-batch does not fit the layout.
ReplicaOptions evaluation_options(const deck::Deck& deck, const data::DatasetInfo& train,
                                  bool keeps_rows, parallel::MeshShape& shape) {
  const int ranks = shape.data;
  const int inner = deck.parallel.tensor * deck.parallel.pipeline;
  if (ranks % inner == 0)
    shape = {
        .data = ranks / inner, .tensor = deck.parallel.tensor, .pipeline = deck.parallel.pipeline};
  ReplicaOptions options = make_replica_options(deck, train, {});
  options.trains = false;
  options.kept_rows = !keeps_rows && !options.answer().is_scored() ? KeptRows::none
                      : options.tokens()                           ? KeptRows::losses
                                                                   : KeptRows::logits;
  options.optimizer.ema = 0;  // The loaded weights are evaluated as they are.
  options.pipeline_schedule = parallel::PipelineKind::one_forward_one_backward;
  options.pipeline_chunks = 1;
  options.sequence = options.sequence && shape.tensor > 1;
  parallel::ParallelOptions layout = deck.parallel;
  layout.pipeline = shape.pipeline;
  layout.pipeline_schedule = options.pipeline_schedule;
  layout.pipeline_chunks = options.pipeline_chunks;
  validate_replica({deck.run, deck.batch, layout, deck.data, deck.schedule, deck.model}, train);
  return options;
}

/// The training set, whose classes are those of the model, and the split.
struct EvaluatedSets {
  std::string key, folder;  ///< Of the split.
  data::Dataset train, split;
};

/// Opens the datasets of a request and checks that they fit its model. Collective. Throws
/// InputError on all ranks.
EvaluatedSets open_sets(const EvaluateRequest& request, const comm::Communicator& world) {
  const deck::Deck& deck = request.deck;
  const std::string& split = request.split;
  const auto folder_key = deck::folder_of_split(split);
  validate(folder_key != nullptr, "--split {}: no such split; train, validation or test", split);
  const std::string &folder = deck.data.*folder_key, key = "data." + split;
  validate(!folder.empty(), "--split {}: the deck names no {}", split, key);
  EvaluatedSets sets{key, folder,
                     open_dataset(world, "data.train", deck.data.train, training_form(deck)),
                     open_dataset(world, key, folder, evaluation_form(deck))};
  comm::together(world, [&] {
    validate_dataset(deck.model, deck.data, sets.train.info(), "data.train", deck.data.train);
    validate_dataset(deck.model, deck.data, sets.split.info(), key, folder);
    validate_same_form(sets.train.info(), sets.split.info(), key, folder);
  });
  return sets;
}

}  // namespace

CheckpointEvaluation evaluate_checkpoint(const EvaluateRequest& request,
                                         const comm::Environment& environment, Log& log) {
  // 1. Check the split and open the datasets.
  const deck::Deck& deck = request.deck;
  const EvaluatedSets sets = open_sets(request, environment.world());
  // 2. Layout and memory of a replica without training.
  parallel::MeshShape shape{.data = environment.world().size()};
  const ReplicaOptions options =
      evaluation_options(deck, sets.train.info(), request.sink != nullptr, shape);
  const parallel::Mesh mesh(shape, environment.world());
  comm::Engine engine(comm::Engine::ProgressMode::polled);
  Device device;
  comm::together(mesh.world, [&] {
    device = choose_device(deck, environment.local_rank());
    validate_precision(deck, describe_device(device));
  });
  const MemoryPlan plan = Replica::measure(options, mesh.shape, mesh.world.rank(), device.kind);
  std::unique_ptr<Replica> replica;
  std::unique_ptr<data::Loader> loader;
  const int readers = choose_reader_threads(deck, environment, device, log);
  comm::together(mesh.world, [&] {
    replica = std::make_unique<Replica>(options, device, device.kind, plan, mesh, engine);
    loader = std::make_unique<data::Loader>(
        sets.split, evaluation_loader_options(deck, sets.split, mesh, device, readers));
  });
  engine.connect(mesh.world, engine_connections(replica->options(), mesh));
  // 3. Load the weights and evaluate.
  const checkpoint::Contents contents = read_verified_contents(mesh.world, request.checkpoint);
  if (const std::optional<deck::Deck> stored = stored_deck(contents, request.checkpoint, log)) {
    validate_same_model(*stored, deck, request.checkpoint);
    validate_same_target(*stored, deck, request.checkpoint);
    warn_of_other_inputs(*stored, deck, request.checkpoint, log);
  }
  validate_preparation(contents.info, sets.split.info(), sets.key, request.checkpoint);
  const std::vector<data::LabelMeaning> sides{
      meaning_of(contents.info, request.checkpoint),
      data::meaning_of(sets.train.info(), "data.train", deck.data.train),
      data::meaning_of(sets.split.info(), sets.key, sets.folder)};
  comm::together(mesh.world, [&] {
    for (const std::string& line : data::validate_same_meaning(sides)) log.info("{}", line);
  });
  load_weights(*replica, contents, request.checkpoint, request.weights);
  log.info("evaluating {}{} on {} samples of {}", request.checkpoint,
           checkpoint::selects_average(request.weights, contents, request.checkpoint)
               ? " (average of the weights)"
               : "",
           sets.split.info().samples, sets.folder);
  const EvaluatedCheckpoint evaluated{
      options.answer().is_one_class() ? class_names(sides, options.outputs.count)
                                      : std::vector<std::string>(),
      sets.split.info().samples, checkpoint::combined_digest(contents.tensors), options.outputs};
  if (request.begin) request.begin(evaluated);
  EvaluationPass pass = start_pass(*loader);
  pass.sink = request.sink;
  pass.between_groups = request.between_groups;
  pass.views = request.views;
  return {evaluated, evaluate(*replica, pass)};
}

}  // namespace trireme::train
