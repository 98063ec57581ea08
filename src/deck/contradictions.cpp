#include "contradictions.hpp"

#include <algorithm>
#include <optional>

#include "judging.hpp"
#include "trireme/base/text.hpp"

namespace trireme::deck {

namespace {

void judge_batch(const Deck& deck, Reader& reader) {
  if (judged_already(reader, {"batch.global", "batch.micro", "parallel.data"})) return;
  const auto& [global, micro] = deck.batch;
  const char* key = reader.given("batch.global") ? "batch.global" : "batch.micro";
  if (global % micro != 0) {
    std::int64_t divisor = std::min(global, micro);
    while (global % divisor != 0) --divisor;
    reader.mistake(
        key, fmt::format("batch.global = {}{} is not a multiple of batch.micro = {}{} (a step is "
                         "cut into whole micro-batches); "
                         "use batch.global = {}, or batch.micro = {}",
                         global, inner_origin(reader, "batch.global"), micro,
                         origin(reader, "batch.micro"), nearest_multiples(global, micro), divisor));
  } else if (deck.parallel.data > 0 && global % (micro * deck.parallel.data) != 0) {
    reader.mistake(key, fmt::format("batch.global = {}{} does not divide over batch.micro = {}{} x "
                                    "parallel.data = {} (each replica needs whole micro-batches); "
                                    "use batch.global = {}",
                                    global, inner_origin(reader, "batch.global"), micro,
                                    inner_origin(reader, "batch.micro"), deck.parallel.data,
                                    nearest_multiples(global, micro * deck.parallel.data)));
  }
}

/// The duration in samples, or in epochs where `epochs`; nothing where only the dataset could tell.
std::optional<double> measure(const Duration& duration, const Deck& deck, bool epochs) {
  if (epochs != (duration.unit == Duration::Unit::epochs)) return std::nullopt;
  switch (duration.unit) {
    case Duration::Unit::epochs:
    case Duration::Unit::samples: return duration.value;
    case Duration::Unit::steps: return duration.value * static_cast<double>(deck.batch.global);
    case Duration::Unit::tokens:
      return duration.value / static_cast<double>(deck.model.gpt.context);
    case Duration::Unit::seconds: break;
  }
  return std::nullopt;
}

/// Tokens count where the samples are sequences of them.
void judge_tokens(const Deck& deck, Reader& reader) {
  if (deck.model.kind == model::ModelKind::gpt || judged_already(reader, {"model.kind"})) return;
  const auto judge = [&](const char* key, const std::optional<Duration>& duration) {
    if (duration && duration->unit == Duration::Unit::tokens)
      reader.mistake(key, fmt::format("{}: tokens count only for token datasets (model.kind = "
                                      "\"gpt\"); write epochs, steps or samples",
                                      quoted(to_string(*duration))));
  };
  judge("run.stop", deck.run.stop);
  judge("schedule.warmup", deck.schedule.warmup);
  judge("schedule.length", deck.schedule.length);
  judge("evaluate.every", deck.evaluate.every);
  judge("checkpoint.every", deck.checkpoint.every);
  judge("checkpoint.keep_every", deck.checkpoint.keep_every);
  judge("monitor.every", deck.monitor.every);
}

void judge_schedule(const Deck& deck, Reader& reader) {
  const optim::ScheduleOptions& schedule = deck.schedule;
  if (deck.run.stop.is_time() && !schedule.length &&
      !judged_already(reader, {"run.stop", "schedule.length"})) {
    reader.mistake("schedule.length",
                   fmt::format("missing; run.stop = \"{}\" is a time, so the schedule needs its "
                               "own length, as in length = \"90 epochs\"",
                               to_string(deck.run.stop)));
    return;
  }
  if (!schedule.warmup || judged_already(reader, {"run.stop", "schedule.length", "schedule.warmup",
                                                  "batch.global", "model.context"}))
    return;
  const Duration whole = schedule.length.value_or(deck.run.stop);
  for (const bool epochs : {true, false}) {
    const auto warmup = measure(*schedule.warmup, deck, epochs),
               length = measure(whole, deck, epochs);
    if (warmup && length && *warmup > *length)
      reader.mistake(
          "schedule.warmup",
          fmt::format("\"{}\" is longer than the {} = \"{}\"; use that or less",
                      to_string(*schedule.warmup),
                      schedule.length ? "schedule.length" : "run, run.stop", to_string(whole)));
  }
}

void judge_float8(const Deck& deck, Reader& reader) {
  if (deck.precision.compute != train::ComputePrecision::float8 ||
      judged_already(reader, {"precision.compute", "model.kind", "parallel.tensor"}))
    return;
  if (deck.model.kind != model::ModelKind::gpt)
    reader.mistake("precision.compute",
                   "\"float8\" is of the layers of model.kind = \"gpt\", not of models of images; "
                   "use \"bfloat16\"");
  else if (deck.parallel.tensor > 1)
    reader.mistake("precision.compute",
                   fmt::format("\"float8\" rounds a tensor by its largest number, of which each "
                               "rank of parallel.tensor = {}{} would know its part alone; use "
                               "\"bfloat16\", or tensor = 1 with more data ranks or stages",
                               deck.parallel.tensor, inner_origin(reader, "parallel.tensor")));
}

}  // namespace

void find_contradictions(const Deck& deck, Reader& reader) {
  judge_gpt(deck, reader);
  judge_batch(deck, reader);
  judge_parallel(deck, reader);
  judge_tokens(deck, reader);
  judge_schedule(deck, reader);
  judge_float8(deck, reader);
  if (deck.precision.reduce != DType::float32 &&
      deck.parallel.sync == parallel::SyncKind::periodic &&
      !judged_already(reader, {"precision.reduce", "parallel.sync"}))
    reader.mistake(
        "precision.reduce",
        fmt::format("is of the sums of gradients, of which parallel.sync = \"every {} steps\"{} "
                    "makes none: its averages of weights are float32; remove it",
                    deck.parallel.sync_every, origin(reader, "parallel.sync")));
  if (!deck.checkpoint.best.empty() && deck.data.validation.empty() &&
      !judged_already(reader, {"checkpoint.best", "data.validation"}))
    reader.mistake("checkpoint.best",
                   fmt::format("\"{}\" is measured on data.validation, which is missing; name that "
                               "folder or use best = \"none\"",
                               deck.checkpoint.best));
  if (deck.checkpoint.best == "perplexity" && deck.model.kind != model::ModelKind::gpt &&
      !judged_already(reader, {"checkpoint.best", "model.kind"}))
    reader.mistake("checkpoint.best",
                   "\"perplexity\" is measured of language models (model.kind = \"gpt\"); use "
                   "\"loss\" or \"top1\"");
  if (deck.optimizer.nesterov && deck.optimizer.momentum == 0 &&
      !judged_already(reader, {"optimizer.momentum", "optimizer.nesterov"}))
    reader.mistake(
        "optimizer.nesterov",
        "true needs a momentum, but momentum = 0; use nesterov = false, or momentum = 0.9");
  if (deck.precision.compute == train::ComputePrecision::tfloat32 &&
      deck.run.device == train::DeviceChoice::cpu &&
      !judged_already(reader, {"precision.compute", "run.device"}))
    reader.mistake("precision.compute",
                   fmt::format("\"tfloat32\" is what the tensor cores of a GPU compute in, but "
                               "run.device = \"cpu\"{}; use \"float32\"",
                               origin(reader, "run.device")));
  const train::HealthOptions& health = deck.health;
  if (health.spike_ratio > 0 && health.spike_ratio <= std::max(1.0, health.spike_warn) &&
      !judged_already(reader, {"health.spike_ratio", "health.spike_warn"}))
    reader.mistake(
        "health.spike_ratio",
        fmt::format("{} would drop losses that are not even worth a warning (spike_warn = {}{}); "
                    "use spike_ratio = 10, or 0 to drop none",
                    health.spike_ratio, health.spike_warn, origin(reader, "health.spike_warn")));
  if (deck.run.walltime && deck.run.walltime_margin.value >= deck.run.walltime->value &&
      !judged_already(reader, {"run.walltime", "run.walltime_margin"}))
    reader.mistake(
        "run.walltime_margin",
        fmt::format(
            "\"{}\"{} leaves nothing of walltime = \"{}\"; use a shorter margin or a longer time",
            to_string(deck.run.walltime_margin), inner_origin(reader, "run.walltime_margin"),
            to_string(*deck.run.walltime)));
}

}  // namespace trireme::deck
