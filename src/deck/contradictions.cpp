// SPDX-License-Identifier: Apache-2.0
//
// Checks between tables of the deck. parse() runs them once, after all keys are read. The rules
// within a table, or between [optimizer] and [schedule], are beside the keys (check_keys()).
//
// Each check_...() function follows one pattern:
// 1. Return if one of its keys already has a mistake (any_wrong).
// 2. Test one rule.
// 3. Add a mistake that names both values and the values that would be valid.
// The checks of [model] and [parallel] are in layout_contradictions.cpp.
#include "contradictions.hpp"

#include <algorithm>
#include <optional>

#include "contradiction_checks.hpp"
#include "trireme/base/path_check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/keys.hpp"
#include "trireme/deck/batch_rule.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/keys.hpp"
#include "trireme/model/loss.hpp"
#include "trireme/optim/keys.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::deck {

namespace {

/// Requires that a step consists of whole micro-batches on every replica, and a micro-batch of
/// pairs if training mixes them.
void check_batch(const Deck& deck, Reader& reader) {
  if (reader.any_wrong({"batch.global", "batch.ramp", "batch.micro", "parallel.data"})) return;
  const int data = deck.parallel.data;  // 0: automatic.
  const bool mixes = !reader.any_wrong({"data.augment.mixup", "data.augment.cutmix"});
  // `ramp`: the row of these samples; none for batch.global.
  const auto rule_broken_by = [&](std::int64_t global, std::vector<RampRow> ramp = {}) {
    const BatchOptions batch{.global = global, .micro = deck.batch.micro, .ramp = std::move(ramp)};
    return broken_batch_rule(batch, mixes ? deck.data.augment.mixing : data::PairMixing{},
                             std::max(data, 1), data == 0,
                             deck.batch.ramp.empty() ? reader.notes() : KeyNotes{});
  };
  if (deck.batch.ramp.empty()) {
    if (const auto broken = rule_broken_by(deck.batch.global)) reader.add_mistake(*broken);
    return;
  }
  for (const RampRow& row : deck.batch.ramp) {
    if (const auto broken = rule_broken_by(row.global, {row})) {
      reader.add_mistake(
          "batch.ramp", fmt::format("in the row \"{}\": {}", to_string(row.from), broken->message));
      return;
    }
  }
}

/// Rejects batch.ramp together with keys that it contradicts.
void check_ramp(const Deck& deck, Reader& reader) {
  if (deck.batch.ramp.empty() || reader.any_wrong({"batch.ramp"})) return;
  if (reader.is_set("batch.global") && !reader.any_wrong({"batch.global"}))
    reader.add_mistake("batch.global",
                       "is replaced by batch.ramp, which is given too; use one of them");
  if (deck.parallel.sync != parallel::SyncKind::step && !reader.any_wrong({"parallel.sync"}))
    reader.add_mistake("batch.ramp",
                       fmt::format("a row ends when all updates are made, so it needs "
                                   "parallel.sync = \"step\"{}; use that, or batch.global",
                                   reader.notes()("parallel.sync")));
  const auto refuse_steps = [&](const char* key, const Duration& interval) {
    const std::optional<std::string> broken = optim::broken_ramp_rule(interval);
    if (broken && !reader.any_wrong({key, "schedule.kind"})) reader.add_mistake(key, *broken);
  };
  if (deck.schedule.every) refuse_steps("schedule.every", *deck.schedule.every);
  if (deck.schedule.kind == optim::ScheduleKind::restarts)
    refuse_steps("schedule.period", deck.schedule.period);
}

/// Returns the duration in epochs if `epochs`, else in samples. Returns nothing if the conversion
/// needs the size of the dataset, which is unknown while the deck is read.
std::optional<double> convert_duration(const Duration& duration, const Deck& deck, bool epochs) {
  if (epochs != (duration.unit == Duration::Unit::epochs)) return std::nullopt;
  switch (duration.unit) {
    case Duration::Unit::epochs:
    case Duration::Unit::samples: return duration.value;
    case Duration::Unit::steps:
      if (!deck.batch.ramp.empty()) return std::nullopt;
      return duration.value * static_cast<double>(deck.batch.global);
    case Duration::Unit::tokens:
      return duration.value / static_cast<double>(family_of(deck.model).context(deck.model));
    case Duration::Unit::seconds: break;
  }
  return std::nullopt;
}

/// Rejects durations in tokens unless samples of the model are tokens.
void check_token_units(const Deck& deck, Reader& reader) {
  if (takes_tokens(deck.model) || reader.any_wrong({"model.kind"})) return;
  const auto judge = [&](const char* key, const std::optional<Duration>& duration) {
    if (duration && duration->unit == Duration::Unit::tokens)
      reader.add_mistake(
          key,
          fmt::format(
              "{}: a duration in tokens needs a token dataset (model.{}); write epochs, steps or "
              "samples",
              quoted(to_string(*duration)), model::kinds_with(SampleKind::tokens)));
  };
  judge("run.stop", deck.run.stop);
  for (const RampRow& row : deck.batch.ramp) judge("batch.ramp", row.from);
  judge("schedule.warmup", deck.schedule.warmup);
  judge("schedule.length", deck.schedule.length);
  judge("schedule.every", deck.schedule.every);
  judge("schedule.period", deck.schedule.period);
  for (const Duration& milestone : deck.schedule.milestones)
    judge("schedule.milestones", milestone);
  judge("evaluate.every", deck.evaluate.every);
  judge("checkpoint.every", deck.checkpoint.every);
  judge("checkpoint.keep_every", deck.checkpoint.keep_every);
  judge("health.compare_replicas", deck.health.compare_replicas);
  judge("monitor.every", deck.monitor.every);
  judge("monitor.noise_scale", deck.monitor.noise_scale);
  judge("monitor.tensors", deck.monitor.tensors);
}

/// Returns what a model answers in words: "language models (model.kind = "gpt")".
std::string describe_answer(const Answer& answer) {
  return answer.is_tokens()
             ? fmt::format("language models (model.{})", model::kinds_with(SampleKind::tokens))
             : fmt::format("target.kind = \"{}\"", answer.word);
}

/// Requires a metric that is measured for the model.
void check_metric(const Deck& deck, const char* key, const std::string& word, Reader& reader) {
  const Answer& answer = answer_of(deck);
  if (answer.is_measured_by(word) || reader.any_wrong({key, "model.kind", "target.kind"})) return;
  std::vector<std::string> owners;
  for (const Answer& owner : answers())
    if (owner.is_measured_by(word)) owners.push_back(describe_answer(owner));
  reader.add_mistake(key, fmt::format("\"{}\" is measured for {}; use {}", word,
                                      fmt::join(owners, " and "), quoted_metrics(answer)));
}

/// Refuses what does not go together with targets that have an answer for each pixel, of which some
/// may be missing.
void check_map(const Deck& deck, Reader& reader) {
  const Answer& answer = answer_of(deck);
  const data::AugmentOptions& augment = deck.data.augment;
  const auto refuse = [&](bool found, const char* key, const char* why, const std::string& advice) {
    if (found && !reader.any_wrong({key}))
      reader.add_mistake(key,
                         fmt::format("{}, but target.kind = \"{}\"; {}", why, answer.word, advice));
  };
  refuse(!family_of(deck.model).makes_maps(), "target.kind",
         "models of this kind give one answer for a sample",
         "use model." +
             model::kinds_with([](const model::Family& family) { return family.makes_maps(); }));
  const std::optional<double>& ignore = deck.target.ignore;
  refuse(!answer.has_float_targets && ignore && *ignore != std::floor(*ignore), "target.ignore",
         "is no whole number, as classes are",
         "give the whole number that marks pixels which do not count");
  refuse(augment.mixing.is_on(),
         augment.mixing.mixup > 0 ? "data.augment.mixup" : "data.augment.cutmix",
         "mixes the targets of samples", "remove it");
  refuse(augment.changes_colors(),
         augment.color_jitter.is_on() ? "data.augment.color_jitter" : "data.augment.rand_augment",
         "moves images before their colors change, and not their targets", "remove it");
  refuse(augment.random_resized_crop.size > 0, "data.augment.random_resized_crop",
         "scales images, and not their targets", "use random_crop, or remove it");
  refuse(augment.evaluate.crop > 0, "data.augment.evaluate", "scales images, and not their targets",
         "remove it");
}

/// Refuses what does not go together with labels that may not count, or count differently: the
/// divisor of the gradient is known only at the end of a step.
void check_counted_labels(const Deck& deck, Reader& reader) {
  const Answer& answer = answer_of(deck);
  const std::vector<double>& weights = deck.loss.class_weights;
  if (!answer.is_map && weights.empty()) return;
  const std::string cause = !weights.empty() ? "loss.class_weights are given"
                                             : fmt::format("target.kind = \"{}\"", answer.word);
  const auto refuse = [&](bool found, const char* key, const char* why, const char* advice) {
    if (found && !reader.any_wrong({key, "loss.class_weights"}))
      reader.add_mistake(key, fmt::format("{}, but {}; {}", why, cause, advice));
  };
  refuse(deck.optimizer.clip_value > 0, "optimizer.clip_value",
         "clips before the labels that count are known", "use clip_norm");
  refuse(deck.parallel.sync != parallel::SyncKind::step, "parallel.sync",
         "updates before the labels that count are known", "use \"step\"");
  refuse(deck.monitor.noise_scale.has_value(), "monitor.noise_scale",
         "compares gradients of micro-batches, in which different numbers of labels may count",
         "remove it");
  if (weights.empty()) return;
  refuse(deck.loss.label_smoothing > 0, "loss.label_smoothing", "spreads a label over all classes",
         "use one of the two");
  refuse(deck.data.augment.mixing.is_on(),
         deck.data.augment.mixing.mixup > 0 ? "data.augment.mixup" : "data.augment.cutmix",
         "mixes classes", "use one of the two");
  if (std::all_of(weights.begin(), weights.end(), [](double one) { return one == 0; }))
    reader.add_mistake("loss.class_weights",
                       "all are 0, so that nothing counts; give a number above 0");
  const auto classes = static_cast<std::int64_t>(weights.size());
  if (deck.target.classes > 0 && classes != deck.target.classes &&
      !reader.any_wrong({"target.classes", "loss.class_weights"}))
    reader.add_mistake("loss.class_weights",
                       fmt::format("has {}, but target.classes = {}; give one for each class",
                                   counted(classes, "number", "numbers"), deck.target.classes));
}

/// Requires a loss, and augmentations, that fit the targets; and files that have such targets.
void check_target(const Deck& deck, Reader& reader) {
  const Answer& answer = answer_of(deck);
  if (!deck.loss.kind->takes(answer.kind) && !reader.any_wrong({"loss.kind", "target.kind"})) {
    std::vector<std::string> owners, fitting;
    for (const Answer& owner : answers())
      if (deck.loss.kind->takes(owner.kind)) owners.push_back(describe_answer(owner));
    for (const model::LossKind& loss : model::losses())
      if (loss.takes(answer.kind)) fitting.push_back(fmt::format("\"{}\"", loss.word));
    reader.add_mistake("loss.kind",
                       fmt::format("\"{}\" is a loss for {}; use {}", deck.loss.kind->word,
                                   fmt::join(owners, " and "), join_with_or(fitting)));
  }
  if (reader.any_wrong({"target.kind"})) return;
  if (answer.is_map) check_map(deck, reader);
  check_counted_labels(deck, reader);
  if (answer.is_one_class() || answer.is_tokens()) return;
  if (deck.data.augment.mixing.cutmix > 0 && !answer.allows_cutmix &&
      !reader.any_wrong({"data.augment.cutmix"}))
    reader.add_mistake("data.augment.cutmix",
                       fmt::format("{} mixes classes by area, but target.kind = \"{}\"; use "
                                   "mixup, or remove it",
                                   deck.data.augment.mixing.cutmix, answer.word));
}

/// Requires evaluations with the metric that a plateau follows.
void check_plateau(const Deck& deck, Reader& reader) {
  if (deck.schedule.kind != optim::ScheduleKind::plateau || reader.any_wrong({"schedule.kind"}))
    return;
  if (deck.data.validation.empty() && !reader.any_wrong({"data.validation"}))
    reader.add_mistake("schedule.kind",
                       "\"plateau\" follows the evaluations on data.validation, which is "
                       "missing; name that folder or use kind = \"cosine\"");
  check_metric(deck, "schedule.metric", deck.schedule.plateau.metric, reader);
}

/// Requires a schedule length if the run is limited by time, and a warmup no longer than it.
void check_schedule(const Deck& deck, Reader& reader) {
  const optim::ScheduleOptions& schedule = deck.schedule;
  if (deck.run.stop.is_time() && !schedule.length && schedule.has_end() &&
      !reader.any_wrong({"run.stop", "schedule.length", "schedule.kind"})) {
    reader.add_mistake(
        "schedule.length",
        fmt::format("missing; run.stop = \"{}\" is a time, so the schedule needs its "
                    "own length, as in length = \"90 epochs\"",
                    to_string(deck.run.stop)));
    return;
  }
  if (!schedule.warmup || reader.any_wrong({"run.stop", "schedule.length", "schedule.warmup",
                                            "batch.global", "model.context"}))
    return;
  const Duration whole = schedule.length.value_or(deck.run.stop);
  if (whole.is_time()) return;
  for (const bool epochs : {true, false}) {
    const auto warmup = convert_duration(*schedule.warmup, deck, epochs),
               length = convert_duration(whole, deck, epochs);
    if (!warmup || !length) continue;
    if (const auto broken = optim::broken_warmup_rule(
            fmt::format("\"{}\"", to_string(*schedule.warmup)), *warmup, *length,
            fmt::format("{} = \"{}\"", schedule.length ? "schedule.length" : "run, run.stop",
                        to_string(whole)),
            "that"))
      reader.add_mistake(*broken);
  }
}

/// Restricts float8 to families that compute it, without tensor parallelism.
void check_float8(const Deck& deck, Reader& reader) {
  if (deck.precision.compute != ComputePrecision::float8 ||
      reader.any_wrong({"precision.compute", "model.kind", "parallel.tensor"}))
    return;
  if (!family_of(deck.model).computes_float8)
    reader.add_mistake(
        "precision.compute",
        fmt::format(
            "\"float8\" is available for model.{} only, not for image models; use "
            "\"bfloat16\"",
            model::kinds_with([](const model::Family& family) { return family.computes_float8; })));
  else if (deck.parallel.tensor > 1)
    reader.add_mistake(
        "precision.compute",
        fmt::format("\"float8\" scales a tensor by its largest value, but each "
                    "rank of parallel.tensor = {}{} has only a part of the tensor; use "
                    "\"bfloat16\", or tensor = 1 with more data ranks or stages",
                    deck.parallel.tensor, reader.notes().inner("parallel.tensor")));
}

/// Requires whole evaluations where a decision depends on them, and a set that can have a subset.
void check_subset(const Deck& deck, Reader& reader) {
  const std::int64_t subset = deck.evaluate.subset;
  if (subset == 0 || reader.any_wrong({"evaluate.subset", "data.validation"})) return;
  if (deck.data.validation.empty()) {
    reader.add_mistake("evaluate.subset",
                       fmt::format("{} samples of data.validation, which is missing; name that "
                                   "folder, or remove it",
                                   subset));
    return;
  }
  if (!deck.checkpoint.best.empty() && !reader.any_wrong({"checkpoint.best"}))
    reader.add_mistake("evaluate.subset",
                       fmt::format("{} samples are too few to decide which checkpoint is the best; "
                                   "use checkpoint.best = \"none\", or 0 for whole evaluations",
                                   subset));
  if (deck.schedule.kind == optim::ScheduleKind::plateau && !reader.any_wrong({"schedule.kind"}))
    reader.add_mistake(
        "evaluate.subset",
        fmt::format("{} samples are too few to decide about the rate (schedule.kind = "
                    "\"plateau\"); use 0 for whole evaluations, or another kind",
                    subset));
}

/// The noise scale compares the gradients of micro-batches with that of their step: a step needs
/// several micro-batches, whole gradients on each rank, and one sum over all data ranks.
void check_noise_scale(const Deck& deck, Reader& reader) {
  if (!deck.monitor.noise_scale || reader.any_wrong({"monitor.noise_scale"})) return;
  const std::string given = quoted(to_string(*deck.monitor.noise_scale));
  const KeyNotes notes = reader.notes();
  const auto is_one = [&](const RampRow& row) { return row.global == deck.batch.micro; };
  if (std::any_of(deck.batch.ramp.begin(), deck.batch.ramp.end(), is_one) &&
      !reader.any_wrong({"batch.ramp", "batch.micro"}))
    reader.add_mistake(
        "monitor.noise_scale",
        fmt::format("{} compares micro-batches with their step, but in a row of batch.ramp a step "
                    "is one micro-batch (batch.micro = {}{}); use a smaller batch.micro, or remove "
                    "it",
                    given, deck.batch.micro, notes("batch.micro")));
  else if (deck.batch.micro == deck.batch.global && deck.batch.ramp.empty() &&
           !reader.any_wrong({"batch.global", "batch.micro"}))
    reader.add_mistake(
        "monitor.noise_scale",
        fmt::format("{} compares micro-batches with their step, but a step is one micro-batch "
                    "(batch.micro = {}{} and batch.global = {}{}); {}, or remove it",
                    given, deck.batch.micro, notes("batch.micro"), deck.batch.global,
                    notes("batch.global"),
                    deck.batch.global > 1
                        ? fmt::format("use batch.micro = {}",
                                      largest_divisor(deck.batch.global, deck.batch.global / 2))
                        : std::string("use batch.global = 2")));
  if (deck.parallel.shard >= parallel::ShardKind::gradients &&
      !reader.any_wrong({"parallel.shard"}))
    reader.add_mistake(
        "monitor.noise_scale",
        fmt::format(
            "{} measures whole gradients, but with parallel.shard = \"{}\"{} a rank keeps "
            "only a part; use shard = \"optimizer\", or remove it",
            given,
            deck.parallel.shard == parallel::ShardKind::gradients ? "gradients" : "parameters",
            notes("parallel.shard")));
  if (deck.parallel.sync_batch_norm != 0 && !reader.any_wrong({"parallel.sync_batch_norm"}))
    reader.add_mistake("monitor.noise_scale",
                       fmt::format("{} needs the gradients of single micro-batches, but with "
                                   "parallel.sync_batch_norm they depend on those of other ranks; "
                                   "use false, or remove it",
                                   given));
  if (deck.optimizer.clip_value > 0 && !reader.any_wrong({"optimizer.clip_value"}))
    reader.add_mistake(
        "monitor.noise_scale",
        fmt::format("{} measures gradients as they are, but optimizer.clip_value = {} "
                    "changes that of the step; use clip_norm, or remove it",
                    given, deck.optimizer.clip_value));
  if (deck.parallel.sync != parallel::SyncKind::step && !reader.any_wrong({"parallel.sync"}))
    reader.add_mistake("monitor.noise_scale",
                       fmt::format("{} needs the sum of the gradients in each step, which only "
                                   "parallel.sync = \"step\" has; use that, or remove it",
                                   given));
}

/// Requires a language model whose ranks have whole rows of logits.
void check_fused_softmax(const Deck& deck, Reader& reader) {
  const char* key = "debug.fused_softmax";
  if (!deck.debug.fused_softmax || reader.any_wrong({key, "model.kind", "parallel.tensor"})) return;
  if (!takes_tokens(deck.model))
    reader.add_mistake(
        key, fmt::format("true changes the head of a language model, but "
                         "model.kind = \"{}\"; remove it, or use {}",
                         family_of(deck.model).word, model::kinds_with(SampleKind::tokens)));
  else if (deck.parallel.tensor > 1)
    reader.add_mistake(key, fmt::format("true needs whole rows of logits, but each rank of "
                                        "parallel.tensor = {}{} has a part of the vocabulary; "
                                        "remove it, or use tensor = 1",
                                        deck.parallel.tensor, reader.notes()("parallel.tensor")));
}

/// Requires a residual network with batch norm of one rank, whose residual sums are part of a norm.
void check_joined_norms(const Deck& deck, Reader& reader) {
  const char* key = "debug.joined_norms";
  if (!deck.debug.joined_norms || reader.any_wrong({key, "model.kind"})) return;
  if (const auto broken = family_of(deck.model).broken_joined_norms_rule(deck.model)) {
    if (!reader.any_wrong({broken->key})) reader.add_mistake(key, broken->message);
  } else if (deck.parallel.sync_batch_norm != 0 &&
             !reader.any_wrong({"parallel.sync_batch_norm"})) {
    reader.add_mistake(
        key,
        "true joins norms whose sums no other rank needs, but parallel.sync_batch_norm gathers "
        "them; remove it, or use sync_batch_norm = false");
  }
}

}  // namespace

void find_contradictions(const Deck& deck, DeckPurpose purpose, Reader& reader) {
  const bool trains = purpose == DeckPurpose::training;
  model::check_keys(deck.model, reader);
  if (trains) check_batch(deck, reader);
  check_ramp(deck, reader);
  check_parallel(deck, purpose, reader);
  check_token_units(deck, reader);
  optim::check_keys(deck.schedule, deck.optimizer, reader);
  check_plateau(deck, reader);
  check_schedule(deck, reader);
  check_float8(deck, reader);
  data::check_keys(deck.data, reader);
  check_subset(deck, reader);
  check_fused_softmax(deck, reader);
  check_joined_norms(deck, reader);
  if (trains) check_noise_scale(deck, reader);
  if (deck.precision.reduce != DType::float32 &&
      deck.parallel.sync == parallel::SyncKind::periodic &&
      !reader.any_wrong({"precision.reduce", "parallel.sync"}))
    reader.add_mistake(
        "precision.reduce",
        fmt::format("applies to sums of gradients, but parallel.sync = \"every {} steps\"{} "
                    "has none: it averages weights in float32; remove it",
                    deck.parallel.sync_every, reader.notes()("parallel.sync")));
  if (!deck.checkpoint.best.empty() && deck.data.validation.empty() &&
      !reader.any_wrong({"checkpoint.best", "data.validation"}))
    reader.add_mistake(
        "checkpoint.best",
        fmt::format("\"{}\" is measured on data.validation, which is missing; name that "
                    "folder or use best = \"none\"",
                    deck.checkpoint.best));
  if (!deck.checkpoint.best.empty())
    check_metric(deck, "checkpoint.best", deck.checkpoint.best, reader);
  check_target(deck, reader);
  if (deck.precision.compute == ComputePrecision::tfloat32 &&
      deck.run.device == DeviceChoice::cpu &&
      !reader.any_wrong({"precision.compute", "run.device"}))
    reader.add_mistake("precision.compute",
                       fmt::format("\"tfloat32\" needs the tensor cores of a GPU, but "
                                   "run.device = \"cpu\"{}; use \"float32\"",
                                   reader.notes()("run.device")));
  if (is_address(deck.run.folder)) reader.add_mistake("run.folder", address_advice);
  const HealthOptions& health = deck.health;
  if (health.spike_ratio > 0 && health.spike_ratio <= std::max(1.0, health.spike_warn) &&
      !reader.any_wrong({"health.spike_ratio", "health.spike_warn"}))
    reader.add_mistake(
        "health.spike_ratio",
        fmt::format("{} would drop losses below the warning threshold (spike_warn = {}{}); "
                    "use spike_ratio = 10, or 0 to drop none",
                    health.spike_ratio, health.spike_warn, reader.notes()("health.spike_warn")));
  if (deck.run.walltime && deck.run.walltime_margin.value >= deck.run.walltime->value &&
      !reader.any_wrong({"run.walltime", "run.walltime_margin"}))
    reader.add_mistake(
        "run.walltime_margin",
        fmt::format("\"{}\"{} leaves no training time within walltime = \"{}\"; use "
                    "a shorter margin or a longer time",
                    to_string(deck.run.walltime_margin),
                    reader.notes().inner("run.walltime_margin"), to_string(*deck.run.walltime)));
}

}  // namespace trireme::deck
