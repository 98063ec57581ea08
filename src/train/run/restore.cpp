// SPDX-License-Identifier: Apache-2.0
//
// Starts or resumes a run: chooses a checkpoint by the policy, checks that it fits, and loads it.
//
// restore() is called once per start, and for each later row of batch.ramp, after memory is
// allocated. It removes leftovers and chooses the newest valid checkpoint of the run folder, else
// the given path, else a fresh start.
// reload_checkpoint() serves rollbacks; load_weights() serves `trireme evaluate` and `generate`.
#include "restore.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/ranges.h>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/weights/import_export.hpp"
#include "trireme/io/seal.hpp"
#include "weight_choice.hpp"

namespace trireme::train {
namespace {

/// Throws InputError if the model has learned positions and the checkpoint is of images of other
/// extents, whose positions may be as many.
void validate_positions(const std::vector<checkpoint::TensorSlice>& pieces,
                        const checkpoint::Contents& contents, const Shape& image,
                        const std::string& path) {
  const auto has_grid = [](const checkpoint::TensorSlice& piece) {
    return piece.spec->grid.has_value();
  };
  const std::optional<TrainedImages> trained = trained_images_of(contents.info, path);
  if (!trained || std::ranges::none_of(pieces, has_grid)) return;
  const Shape& extents = trained->extents;
  validate(extents[0] == image[0] && extents[1] == image[1],
           "{}: has learned the positions of images of {} x {} (height, width), but the data are "
           "{} x {}; use data of its size",
           path, extents[0], extents[1], image[0], image[1]);
}

/// Throws InputError if the deck changes a key that must not change in a restart; logs all other
/// changes.
void compare_decks(const deck::Deck& stored, const deck::Deck& deck, const std::string& path,
                   Log& log) {
  std::string refused;
  const auto shown = [](const std::string& value) { return value.empty() ? "not given" : value; };
  for (const deck::Difference& difference : deck::differences(stored, deck)) {
    if (difference.forbidden) {
      refused += fmt::format("{}{}: {} -> {}", refused.empty() ? "" : "; ", difference.key,
                             shown(difference.before), shown(difference.after));
    } else {
      log.info("changed since the checkpoint: {}: {} -> {}", difference.key,
               shown(difference.before), shown(difference.after));
    }
  }
  validate(refused.empty(),
           "{}: a restart may not change {}; restore the old value, or start a new run (another "
           "run.folder, or --restart none)",
           path, refused);
}

/// Throws InputError if the run's training set is not that of the checkpoint.
void validate_training_set(const Run& run, const checkpoint::Contents& contents,
                           const std::string& path) {
  if (const std::optional<std::uint64_t> dataset = dataset_of(contents.info)) {
    validate(*dataset == run.training_identity(),
             "data.train: {} holds other shards (names or sample counts) than the run in {} was "
             "trained on; give the same dataset, or start a new run "
             "(another run.folder, or --restart none)",
             run.deck.data.train, path);
  }
  validate_preparation(contents.info, run.train_set.info(), "data.train", path);
}

/// Compares classes and tokenizer of the run's training set with those of the checkpoint. Throws
/// InputError if they differ; with `weights_only` logs a warning.
void compare_training_meaning(const Run& run, const checkpoint::Contents& contents,
                              const std::string& path, bool weights_only, Log& log) {
  const data::MeaningComparison compared = data::compare_meanings(
      meaning_of(contents.info, path),
      data::meaning_of(run.train_set.info(), "data.train", run.deck.data.train));
  validate(compared.difference.empty() || weights_only,
           "{}; or take its weights alone, as they are: --restart {} --weights-only",
           compared.difference, path);
  if (!compared.difference.empty())
    log.warn("{}. --weights-only takes the weights as they are", compared.difference);
  if (!compared.not_compared.empty()) log.info("{}", compared.not_compared);
}

/// Throws InputError if the checkpoint holds weights of a model that are not among `pieces`, those
/// of the replica.
void validate_tensors(const checkpoint::Contents& contents,
                      std::span<const checkpoint::TensorSlice> pieces, const std::string& path) {
  std::set<std::string> taken;
  for (const checkpoint::TensorSlice& piece : pieces) taken.insert(piece.path);
  std::string left;
  int count = 0;
  for (const checkpoint::Contents::Entry& entry : contents.tensors) {
    if (is_of_model(entry) && !taken.contains(entry.path) && ++count <= 5)
      left += (count > 1 ? ", " : "") + printable(entry.path);
  }
  validate(count == 0,
           "{}: holds {} tensors that the deck's model does not have ({}{}); use the deck it was "
           "trained with",
           path, count, left, count > 5 ? ", ..." : "");
}

/// Removes optimizer state that the file lacks from `pieces` and returns it.
std::vector<checkpoint::TensorSlice> take_missing_slots(
    std::vector<checkpoint::TensorSlice>& pieces, const checkpoint::Contents& contents) {
  std::set<std::string> present;
  for (const checkpoint::Contents::Entry& entry : contents.tensors) present.insert(entry.path);
  const auto missing = std::stable_partition(
      pieces.begin(), pieces.end(), [&](const checkpoint::TensorSlice& piece) {
        return !piece.path.starts_with("optimizer/") || present.contains(piece.path);
      });
  std::vector<checkpoint::TensorSlice> taken(missing, pieces.end());
  pieces.erase(missing, pieces.end());
  return taken;
}

/// Returns, by weight, the updates that were applied before its optimizer state began: those in the
/// file, and all of them for the slots that it lacks.
std::map<std::string, std::int64_t> updates_before(
    const checkpoint::Info& info, std::span<const checkpoint::TensorSlice> missing) {
  std::map<std::string, std::int64_t> before = info.updates_before;
  for (const checkpoint::TensorSlice& slice : missing)
    if (info.updates > 0 && slice.counts_updates) before[slice.spec->name] = info.updates;
  return before;
}

/// Throws InputError on all ranks if the file is missing or its seal is broken. Rank 0 reads every
/// byte.
void verify_seal(const comm::Communicator& world, const std::string& path) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    validate(std::filesystem::exists(path), "{}: no such checkpoint", path);
    checkpoint::reject_folder(path);
    const std::string damage = io::check_seal(path);
    validate(!io::is_damage(damage), "{}: {}", path, damage);
  });
}

/// Throws InputError if a counter of the file is below 0, or so large that no run can write it.
/// Called before anything is computed from them.
void validate_counters(const checkpoint::Info& info, const std::string& path) {
  for (const auto& [name, value] :
       {std::pair("step", info.step), std::pair("epoch", info.epoch),
        std::pair("samples", info.samples), std::pair("updates", info.updates)}) {
    validate(0 <= value && value <= max_step, "{}: its attribute {} is {}, which no run can write",
             path, name, value);
  }
}

/// Throws InputError if the position in the data is impossible: an untrusted file, or another
/// dataset.
void validate_position(const Run& run, const checkpoint::Info& info, const std::string& path) {
  const std::int64_t samples = run.layout.samples;
  validate(0 <= info.epoch_samples && info.epoch_samples <= samples,
           "{}: states that {} samples of epoch {} are taken, but data.train has {}", path,
           info.epoch_samples, info.epoch, samples);
  for (const auto& [name, before] : info.updates_before)
    validate(before <= info.updates,
             "{}: states that the optimizer state of {} began after {} updates, but only {} were "
             "made",
             path, printable(name), before, info.updates);
  validate(info.updates <= info.step, "{}: states that {} updates were made in {} steps", path,
           info.updates, info.step);
  const double passed = static_cast<double>(info.epoch) * static_cast<double>(samples) +
                        static_cast<double>(info.epoch_samples);
  validate(
      info.samples == 0 ||
          (info.step <= info.samples && static_cast<double>(info.samples) <= passed),
      "{}: states that {} steps took {} samples and are {} samples into epoch {}; with {} samples "
      "in data.train that is impossible",
      path, info.step, info.samples, info.epoch_samples, info.epoch, samples);
}

/// Returns the tensors that give the outputs if one of the model and the file answers for each
/// pixel, or with numbers, and the other does not. Both may have the same names and shapes.
std::vector<std::string> tensors_of_another_answer(const deck::Deck& stored, const Run& run) {
  const Answer &before = deck::answer_of(stored), &after = deck::answer_of(run.deck);
  if (before.is_map == after.is_map && before.has_units == after.has_units) return {};
  // One of its own: the layers of a model keep what was declared last.
  const ReplicaOptions& options = run.replica->options();
  const model::Model model(options.model, options.input_shape(), options.outputs);
  parallel::ParameterList head;
  model.declare(head, model.block_count(), model.block_count() + 1);
  std::vector<std::string> names;
  for (const auto& entry : head.entries())
    if (entry.spec.shape.rank() > 1 || entry.spec.product_bias) names.push_back(entry.spec.name);
  return names;
}

/// Loads what `policy` takes of a checkpoint with these contents, by default everything. Returns
/// its state (weights_only: a new one) and deck.
///
/// `own`: a checkpoint of this run; the attempt to start from it is counted once the deck is known
/// to fit. Collective. Throws InputError on all ranks if the file does not fit.
RestoredRun load(Run& run, const std::string& path, const checkpoint::Contents& contents,
                 const RestartPolicy& policy, Log& log, bool own = false) {
  const bool weights_only = policy.weights_only;
  if (!weights_only) validate_counters(contents.info, path);
  if (!weights_only && !run.layout.contains_step(contents.info.step + 1)) {
    RestoredRun other{run_state_of(contents.info), own, std::nullopt, path};
    other.is_of_other_row = true;
    return other;
  }
  // 1. Compare decks and refuse files of another model or dataset.
  if (!contents.sealed)
    log.warn("{} has no seal: it was made by another program and is untrusted", path);
  std::optional<deck::Deck> stored = stored_deck(contents, path, log);
  if (stored) {
    if (weights_only)
      validate_same_model(*stored, run.deck, path);
    else
      compare_decks(*stored, run.deck, path, log);
  }
  // Checked after the deck, because a changed model.context also changes the samples.
  if (!weights_only) validate_training_set(run, contents, path);
  compare_training_meaning(run, contents, path, weights_only, log);
  WeightUpdate& update = run.replica->weight_update();
  if (!weights_only) restore_pending(update.reducer(), contents.info);
  std::vector<checkpoint::TensorSlice> pieces = slices_of(*run.replica, Rows::owned, !weights_only);
  if (weights_only)
    choose_weights(pieces, contents, policy.skip, run.replica->options().image,
                   stored ? tensors_of_another_answer(*stored, run) : std::vector<std::string>(),
                   path, log);
  else
    validate_tensors(contents, pieces, path);
  const std::vector<checkpoint::TensorSlice> missing = take_missing_slots(pieces, contents);
  if (!missing.empty())
    log.warn("{} has no optimizer state for {} tensors: it starts at zero", path, missing.size());
  if (!weights_only) validate_position(run, contents.info, path);
  // 2. Count the attempt, so that a checkpoint that crashes every start is passed over.
  if (own)
    checkpoint::count_attempt(run.mesh.world, run.deck.run.folder,
                              std::filesystem::path(path).filename().string());
  // 3. Read the tensors and rebuild the working weights; start the average of weights if the file
  //    has none. Skipped tensors keep their initial values.
  optim::Optimizer& optimizer = update.optimizer();
  const bool starts_average = optimizer.ema().defined() &&
                              (weights_only || !checkpoint::selects_average(
                                                   checkpoint::Weights::evaluated, contents, path));
  if (starts_average)
    std::erase_if(pieces, [](const checkpoint::TensorSlice& piece) {
      return piece.path.starts_with("ema/");
    });
  if (!policy.skip.empty()) update.initialize(run.deck.run.seed);
  checkpoint::read(run.mesh.world, path, pieces, contents.index);
  checkpoint::set_to_zero(missing);  // After a rollback they hold the state of later steps.
  update.refresh_working();
  if (starts_average) {
    optimizer.start_ema(run.replica->context());
    log.info("the average of the weights starts from the weights of {}{}", path,
             weights_only ? "" : ", which has none");
  } else {
    optimizer.start_frozen_ema(run.replica->context());
  }
  // 4. Restore the counters of the optimizer.
  if (weights_only) return {{}, own, std::move(stored), path};
  optimizer.set_updates(contents.info.updates);
  optimizer.set_updates_before(updates_before(contents.info, missing));
  restore_loss_scale(optimizer, contents.info);
  return {run_state_of(contents.info), own, std::move(stored), path};
}

/// Warns if metrics.jsonl has rows but there is no checkpoint: none was written, or all were
/// deleted.
void warn_of_earlier_start(const Run& run, Log& log) {
  std::error_code none;
  if (run.mesh.world.rank() != 0 || std::filesystem::file_size(run.folder().metrics(), none) == 0 ||
      none)
    return;
  log.warn(
      "{}: has metrics of an earlier start and no checkpoint; the run starts fresh. If there were "
      "checkpoints, stop this run and put them back",
      run.deck.run.folder);
}

/// Throws InputError if a file from which a new run starts is among the checkpoints of that run,
/// which it replaces. Collective.
void validate_outside(const comm::Communicator& world, const std::string& path,
                      const std::string& folder) {
  comm::together(world, [&] {
    std::error_code ignored;
    const bool is_inside = std::filesystem::equivalent(
        std::filesystem::absolute(path, ignored).parent_path(), folder, ignored);
    validate(world.rank() != 0 || !is_inside,
             "--restart {}: is among the checkpoints of this run, which a start from weights "
             "replaces; move it to another folder, or give another run.folder",
             path);
  });
}

/// Fills the weights with their initial values and returns a new state.
RunState start_fresh(Run& run, Log& log) {
  run.replica->weight_update().initialize(run.deck.run.seed);
  log.info("a fresh start in {}", run.deck.run.folder);
  return {};
}

}  // namespace

RestoredRun restore(Run& run, const RestartPolicy& policy,
                    const std::optional<checkpoint::CheckpointChoice>& newest, Log& log) {
  const std::string folder = run.folder().checkpoints();
  // 1. Remove temporary files of interrupted writes.
  checkpoint::remove_leftovers(run.mesh.world, folder, log);
  if (policy.kind == RestartPolicy::Kind::none) {
    checkpoint::archive_checkpoints(run.mesh.world, folder, log);
    return {start_fresh(run, log), false, {}, {}};
  }
  // Checked even if it will not be used: the path may be a misspelt option.
  if (policy.kind == RestartPolicy::Kind::path) {
    comm::together(run.mesh.world, [&] {
      validate(run.mesh.world.rank() != 0 || std::filesystem::exists(policy.path),
               "--restart {}: no such checkpoint; give a path, or one of auto, required, none",
               policy.path);
    });
    verify_seal(run.mesh.world, policy.path);
  }
  // 2. Choose the newest valid checkpoint that does not fail at every start.
  const checkpoint::CheckpointChoice choice = checkpoint::skip_failed_checkpoint(
      run.mesh.world, run.deck.run.folder,
      newest ? *newest : checkpoint::find_newest(run.mesh.world, folder), log);
  // 3. Resume from the run's own folder if it holds a valid checkpoint.
  if (!choice.path.empty()) {
    checkpoint::rename_rejected(run.mesh.world, choice.rejected, log);
    RestoredRun restored = load(run, choice.path, choice.contents, {}, log, true);
    if (restored.is_of_other_row) return restored;
    log.info("resumed from {} (step {})", choice.path, restored.state.step);
    if (policy.kind == RestartPolicy::Kind::path)
      log.warn(
          "--restart {} is ignored: the run's own folder holds checkpoints, and the newest of "
          "them is used",
          policy.path);
    return restored;
  }
  // 4. Otherwise start from the given file; damaged checkpoints of the folder are set aside.
  if (policy.kind == RestartPolicy::Kind::path) {
    if (policy.weights_only) validate_outside(run.mesh.world, policy.path, folder);
    checkpoint::rename_rejected(run.mesh.world, choice.rejected, log);
    const checkpoint::Contents contents = checkpoint::read_contents(run.mesh.world, policy.path);
    RestoredRun restored = load(run, policy.path, contents, policy, log);
    if (restored.is_of_other_row) return restored;
    // The new run would replace a best.h5 that is left of an earlier one.
    if (policy.weights_only) checkpoint::archive_checkpoints(run.mesh.world, folder, log);
    log.info("resumed from {} (step {}{})", policy.path, restored.state.step,
             policy.weights_only ? ", weights only" : "");
    return restored;
  }
  // 5. Otherwise a fresh start, unless all checkpoints are damaged or the policy forbids it.
  if (!choice.rejected.empty()) {
    std::string list;
    for (const checkpoint::RejectedFile& rejected : choice.rejected)
      list += fmt::format("\n  {}: {}", rejected.path, rejected.reason);
    throw InputError(
        fmt::format("{}: no checkpoint here is valid, and a run never starts fresh by itself; "
                    "`--restart none` starts a new run and moves these aside, "
                    "`--restart PATH` resumes from another file{}",
                    folder, list));
  }
  validate(policy.kind != RestartPolicy::Kind::required,
           "{}: no checkpoint to resume from, and --restart required forbids a fresh start",
           folder);
  warn_of_earlier_start(run, log);
  // best.h5 may be all that is left of an earlier start.
  checkpoint::archive_checkpoints(run.mesh.world, folder, log);
  return {start_fresh(run, log), false, {}, {}};
}

RunState reload_checkpoint(Run& run, const std::string& path, Log& log) {
  verify_seal(run.mesh.world, path);
  return load(run, path, checkpoint::read_contents(run.mesh.world, path), {}, log).state;
}

checkpoint::Contents read_verified_contents(const comm::Communicator& world,
                                            const std::string& path) {
  verify_seal(world, path);
  return checkpoint::read_contents(world, path);
}

std::optional<deck::Deck> stored_deck(const checkpoint::Contents& contents, const std::string& path,
                                      Log& log) {
  if (contents.info.deck.empty()) {
    log.warn(
        "{}: holds no deck, so only names and shapes of its tensors are compared with the model; "
        "heads, activation, epsilon and positions are those of the deck",
        path);
    return std::nullopt;
  }
  deck::StoredDeck stored = deck::parse_stored(contents.info.deck, path + ":deck");
  if (!stored.dropped_keys.empty())
    log.info("{}: keys of its deck that have no effect are dropped: {}", path,
             fmt::join(stored.dropped_keys, ", "));
  return std::move(stored.deck);
}

void validate_same_model(const deck::Deck& stored, const deck::Deck& deck,
                         const std::string& path) {
  deck::Deck before = stored, after = deck;
  for (model::ModelOptions* options : {&before.model, &after.model})
    family_of(*options).reset_beside_weights(*options);
  const model::Family& family = family_of(after.model);
  for (const deck::Difference& difference : deck::differences(before, after)) {
    if (!difference.key.starts_with("model.")) continue;
    const std::string what =
        family.block_list && difference.key == family.block_list
            ? fmt::format("its {} differs from the deck's at {}", difference.key,
                          family.differing_block(before.model, after.model))
            : fmt::format("its model has {}: {}, but the deck has {}", difference.key,
                          difference.before.empty() ? "none" : difference.before,
                          difference.after.empty() ? "none" : difference.after);
    throw InputError(fmt::format("{}: {}; use the deck it was trained with", path, what));
  }
}

void validate_same_target(const deck::Deck& stored, const deck::Deck& deck,
                          const std::string& path) {
  // A deck of shards may have no table; they keep that of their files.
  const bool have_tables = stored.data.hdf5.is_used() && deck.data.hdf5.is_used();
  for (const deck::Difference& difference : deck::differences(stored, deck))
    validate(!difference.key.starts_with("target.") &&
                 (difference.key != "data.hdf5.transform" || !have_tables),
             "{}: its model was trained with {}: {}, but the deck has {}; use the deck it was "
             "trained with",
             path, difference.key, difference.before.empty() ? "none" : difference.before,
             difference.after.empty() ? "none" : difference.after);
}

void warn_of_other_inputs(const deck::Deck& stored, const deck::Deck& deck, const std::string& path,
                          Log& log) {
  constexpr std::array keys{"data.augment.normalize", "data.hdf5.input",         "data.hdf5.target",
                            "data.hdf5.layout",       "data.hdf5.target_layout", "data.hdf5.fill"};
  // "/x" and "x" name the same dataset.
  deck::Deck before = stored, after = deck;
  for (deck::Deck* one : {&before, &after})
    for (std::vector<std::string>* paths : {&one->data.hdf5.input, &one->data.hdf5.target})
      for (std::string& name : *paths)
        if (!name.starts_with('/')) name.insert(0, 1, '/');
  const bool have_tables = stored.data.hdf5.is_used() && deck.data.hdf5.is_used();
  for (const deck::Difference& difference : deck::differences(before, after))
    if (std::ranges::find(keys, difference.key) != keys.end() &&
        (have_tables || !difference.key.starts_with("data.hdf5.")))
      log.warn("{}: its model was trained with {}: {}, but the deck has {}", path, difference.key,
               difference.before.empty() ? "none" : difference.before,
               difference.after.empty() ? "none" : difference.after);
}

void load_weights(Replica& replica, const checkpoint::Contents& contents, const std::string& path,
                  checkpoint::Weights weights) {
  std::vector<checkpoint::TensorSlice> pieces = slices_of(replica, Rows::owned, false);
  validate_tensors(contents, pieces, path);
  validate_positions(pieces, contents, replica.options().image, path);
  if (checkpoint::selects_average(weights, contents, path)) {
    for (checkpoint::TensorSlice& piece : pieces) piece.path = "ema/" + piece.spec->name;
  }
  checkpoint::read(replica.mesh().world, path, pieces, contents.index);
  replica.weight_update().refresh_working();
}

}  // namespace trireme::train
