#include "trireme/train/restore.hpp"

#include <algorithm>
#include <filesystem>
#include <set>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/checkpoint/checkpoint.hpp"
#include "trireme/checkpoint/folder.hpp"
#include "trireme/checkpoint/import_export.hpp"

namespace trireme::train {
namespace {

/// Refuses a restart that changes what may not change; prints what else changed.
void compare_decks(const Run& run, const checkpoint::Contents& contents, const std::string& path,
                   Log& log) {
  std::string refused;
  if (!contents.info.deck.empty()) {
    for (const deck::Difference& difference :
         deck::differences(deck::parse(contents.info.deck, path + ":deck"), run.deck)) {
      if (difference.forbidden) {
        refused += fmt::format("{}{}: {} -> {}", refused.empty() ? "" : "; ", difference.key,
                               difference.before, difference.after);
      } else {
        const auto shown = [](const std::string& value) {
          return value.empty() ? "not given" : value;
        };
        log.info("changed since the checkpoint: {}: {} -> {}", difference.key,
                 shown(difference.before), shown(difference.after));
      }
    }
  }
  validate(refused.empty(),
           "{}: a restart may not change {}; put the old value back, or start a new run (another "
           "run.folder, or --restart none)",
           path, refused);
  if (const std::optional<std::uint64_t> dataset = dataset_of(
          contents.info)) {  // after the deck: a changed model.context changes the samples too
    validate(*dataset == run.train_set.info().identity,
             "data.train: {} holds other shards (names or sample counts) than the run in {} was "
             "trained on; give the same dataset, or start a new run "
             "(another run.folder, or --restart none)",
             run.deck.data.train, path);
  }
}

/// Refuses a file of another model: where its deck says so, or where it holds weights that nobody
/// takes.
void validate_model(const deck::Deck& deck, const checkpoint::Contents& contents,
                    std::span<const checkpoint::TensorSlice> pieces, const std::string& path) {
  if (!contents.info.deck.empty()) {
    for (const deck::Difference& difference :
         deck::differences(deck::parse(contents.info.deck, path + ":deck"), deck)) {
      validate(!difference.key.starts_with("model.") || difference.key == "model.dropout",
               "{}: its model has {}: {}, and the deck says {}; use the deck it was trained with",
               path, difference.key, difference.before.empty() ? "none" : difference.before,
               difference.after.empty() ? "none" : difference.after);
    }
  }
  std::set<std::string> taken;
  for (const checkpoint::TensorSlice& piece : pieces) taken.insert(piece.path);
  std::string left;
  int count = 0;
  for (const checkpoint::Contents::Entry& entry : contents.tensors) {
    const bool of_model = entry.path.starts_with("model/") || entry.path.starts_with("buffers/");
    if (of_model && !taken.contains(entry.path) && ++count <= 5)
      left += (count > 1 ? ", " : "") + entry.path;
  }
  validate(count == 0,
           "{}: holds {} tensors that the deck's model does not have ({}{}); use the deck it was "
           "trained with",
           path, count, left, count > 5 ? ", ..." : "");
}

/// Leaves out the slots that the file lacks: they start at zero. Returns how many tensors were left
/// out.
std::size_t remove_missing_slots(std::vector<checkpoint::TensorSlice>& pieces,
                                 const checkpoint::Contents& contents) {
  std::set<std::string> present;
  for (const checkpoint::Contents::Entry& entry : contents.tensors) present.insert(entry.path);
  return std::erase_if(pieces, [&](const checkpoint::TensorSlice& piece) {
    return piece.path.starts_with("optimizer/") && !present.contains(piece.path);
  });
}

/// Refuses a file whose seal is broken. Rank 0 reads every byte, all get its answer.
void verify_seal(const comm::Communicator& world, const std::string& path) {
  comm::together(world, [&] {
    if (world.rank() != 0) return;
    validate(
        std::filesystem::exists(path),
        "{}: no such checkpoint; a path is meant, or for --restart one of auto, required, none",
        path);
    const std::string damage = checkpoint::check_seal(path);
    validate(damage.empty() || damage == "no seal", "{}: {}", path, damage);
  });
}

/// Refuses a place in the data where no run can stand: a stranger's numbers, or another data set's.
void validate_position(const Run& run, const checkpoint::Info& info, const std::string& path) {
  constexpr std::int64_t most =
      std::int64_t{1} << 53;  // what any reader of HDF5 can tell apart, and far beyond every run
  const std::int64_t samples = run.train_set.info().samples;
  validate(0 <= info.epoch_samples && info.epoch_samples <= samples,
           "{}: says that {} samples of epoch {} are taken, but data.train has {}", path,
           info.epoch_samples, info.epoch, samples);
  for (const auto& [name, value] :
       {std::pair("step", info.step), std::pair("epoch", info.epoch),
        std::pair("samples", info.samples), std::pair("updates", info.updates)}) {
    validate(0 <= value && value <= most,
             "{}: its attribute {} is {}, which no run can have come to", path, name, value);
  }
  validate(info.updates <= info.step, "{}: says that {} updates were made in {} steps", path,
           info.updates, info.step);
  const double passed = static_cast<double>(info.epoch) * static_cast<double>(samples) +
                        static_cast<double>(info.epoch_samples);
  validate(info.samples == 0 ||
               (info.step <= info.samples && static_cast<double>(info.samples) <= passed),
           "{}: says that {} steps took {} samples and are {} samples into epoch {}; of {} samples "
           "in data.train that cannot be",
           path, info.step, info.samples, info.epoch_samples, info.epoch, samples);
}

/// `contents`: the file's. `own`: a checkpoint of this run, from which a start is counted once it
/// is known that the deck fits.
RunState load(Run& run, const std::string& path, const checkpoint::Contents& contents,
              bool weights_only, Log& log, bool own = false) {
  if (!contents.sealed)
    log.warn("{} has no seal: it was made by another program and is read as a stranger's", path);
  if (!weights_only) compare_decks(run, contents, path, log);
  if (!weights_only) restore_pending(*run.replica, contents.info);
  std::vector<checkpoint::TensorSlice> pieces = slices_of(*run.replica, Rows::owned, !weights_only);
  validate_model(run.deck, contents, pieces, path);
  const std::size_t missing = remove_missing_slots(pieces, contents);
  if (missing > 0)
    log.warn("{} has no optimizer state for {} tensors: it starts at zero", path, missing);
  if (!weights_only) validate_position(run, contents.info, path);
  if (own)
    checkpoint::count_attempt(run.mesh.world, run.deck.run.folder,
                              std::filesystem::path(path).filename().string());
  const bool starts_average = run.replica->optimizer().ema().defined() &&
                              (weights_only || !checkpoint::selects_average(
                                                   checkpoint::Weights::evaluated, contents, path));
  if (starts_average)
    std::erase_if(pieces, [](const checkpoint::TensorSlice& piece) {
      return piece.path.starts_with("ema/");
    });
  checkpoint::read(run.mesh.world, path, pieces);
  run.replica->store().refresh_working(run.replica->context());
  if (starts_average) {
    run.replica->optimizer().start_ema(run.replica->context());
    log.info("the average of the weights starts from the weights of {}{}", path,
             weights_only ? "" : ", which has none");
  }
  if (weights_only) return {};
  run.replica->optimizer().set_updates(contents.info.updates);
  restore_loss_scale(*run.replica, contents.info);
  return run_state_of(contents.info);
}

/// Rows without a checkpoint: an earlier start never came to one, or somebody, or the rules of a
/// scratch disk, took them away.
void warn_of_earlier_start(const Run& run, Log& log) {
  std::error_code none;
  if (run.mesh.world.rank() != 0 ||
      std::filesystem::file_size(run.deck.run.folder + "/metrics.jsonl", none) == 0 || none)
    return;
  log.warn(
      "{}: has metrics of an earlier start and no checkpoint; it is begun anew. If there were "
      "checkpoints, stop this run and put them back",
      run.deck.run.folder);
}

RunState start_fresh(Run& run, Log& log) {
  run.replica->initialize(run.deck.run.seed);
  log.info("a fresh start in {}", run.deck.run.folder);
  return {};
}

}  // namespace

RestoredRun restore(Run& run, const RestartPolicy& policy,
                    const std::optional<checkpoint::CheckpointChoice>& newest, Log& log) {
  const std::string folder = run.deck.run.folder + "/checkpoints";
  checkpoint::remove_leftovers(run.mesh.world, folder);
  if (policy.kind == RestartPolicy::Kind::none) {
    checkpoint::archive_checkpoints(run.mesh.world, folder, log);
    return {start_fresh(run, log), false, {}};
  }
  if (policy.kind == RestartPolicy::Kind::path)
    verify_seal(run.mesh.world,
                policy.path);  // also where it will not be used: it may be a misspelt word
  const checkpoint::CheckpointChoice choice = checkpoint::skip_failed_checkpoint(
      run.mesh.world, run.deck.run.folder,
      newest ? *newest : checkpoint::find_newest(run.mesh.world, folder), log);
  if (!choice.path.empty()) {
    checkpoint::rename_damaged(run.mesh.world, choice.rejected, log);
    RestoredRun restored{load(run, choice.path, choice.contents, false, log, true), true,
                         choice.contents.info.deck};
    log.info("goes on from {} (step {})", choice.path, restored.state.step);
    if (policy.kind == RestartPolicy::Kind::path)
      log.warn(
          "--restart {} is not used: the run's own folder holds checkpoints, and the newest of "
          "them counts",
          policy.path);
    return restored;
  }
  if (policy.kind == RestartPolicy::Kind::path) {
    checkpoint::rename_damaged(run.mesh.world, choice.rejected, log);
    const checkpoint::Contents contents = checkpoint::read_contents(run.mesh.world, policy.path);
    RestoredRun restored{load(run, policy.path, contents, policy.weights_only, log), false,
                         contents.info.deck};
    log.info("goes on from {} (step {}{})", policy.path, restored.state.step,
             policy.weights_only ? ", weights only" : "");
    return restored;
  }
  if (!choice.rejected.empty()) {
    std::string list;
    for (const checkpoint::RejectedFile& rejected : choice.rejected)
      list += fmt::format("\n  {}: {}", rejected.path, rejected.reason);
    throw InputError(
        fmt::format("{}: no checkpoint here is whole, and a run is never begun anew in silence; "
                    "`--restart none` starts a new run and moves these aside, "
                    "`--restart PATH` goes on from another file{}",
                    folder, list));
  }
  validate(policy.kind != RestartPolicy::Kind::required,
           "{}: no checkpoint to go on from, and --restart required forbids a fresh start", folder);
  warn_of_earlier_start(run, log);
  return {start_fresh(run, log), false, {}};
}

RunState reload_checkpoint(Run& run, const std::string& path, Log& log) {
  verify_seal(run.mesh.world, path);
  return load(run, path, checkpoint::read_contents(run.mesh.world, path), false, log);
}

checkpoint::Contents read_verified_contents(const comm::Communicator& world,
                                            const std::string& path) {
  verify_seal(world, path);
  return checkpoint::read_contents(world, path);
}

void load_weights(Replica& replica, const deck::Deck& deck, const checkpoint::Contents& contents,
                  const std::string& path, checkpoint::Weights weights) {
  std::vector<checkpoint::TensorSlice> pieces = slices_of(replica, Rows::owned, false);
  validate_model(deck, contents, pieces, path);
  if (checkpoint::selects_average(weights, contents, path)) {
    for (checkpoint::TensorSlice& piece : pieces) piece.path = "ema/" + piece.spec->name;
  }
  checkpoint::read(replica.mesh().world, path, pieces);
  replica.store().refresh_working(replica.context());
}

}  // namespace trireme::train
