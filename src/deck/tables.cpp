// SPDX-License-Identifier: Apache-2.0
//
// Declares the tables of a deck in the order in which they are written, and the keys of those that
// the deck owns. Each other table is declared in the library of its options (keys.hpp there).
//
// A key has a name, its meaning in one sentence, an optional condition, advice for the case that it
// is missing, and a field that reads and writes its value (trireme/keys/fields.hpp).
// A key that decides a condition is visited before the keys that depend on it.
//
// A condition (AppliesTo) says beside which values of another key a key has an effect. A key with a
// value that means "off" has none: a contradiction refuses its other values instead, and "off"
// stays valid (parallel.outer_momentum = 0).
#include "tables.hpp"

#include <fmt/format.h>

#include "deck_fields.hpp"
#include "trireme/checkpoint/keys.hpp"
#include "trireme/data/keys.hpp"
#include "trireme/model/family.hpp"
#include "trireme/model/keys.hpp"
#include "trireme/monitor/keys.hpp"
#include "trireme/optim/keys.hpp"
#include "trireme/parallel/keys.hpp"

namespace trireme::deck {

namespace {

/// Returns an error message if the name cannot be part of a folder's path, else an empty string.
std::string run_name_error(const std::string& name) {
  for (const char c : name) {
    const bool right = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    if (!right)
      return fmt::format("{}: a run's name may contain only letters, digits, '.', '_' and '-'",
                         quoted(name));
  }
  if (name == "." || name == "..")
    return fmt::format("{}: a run's name must not be a special folder name", quoted(name));
  return "";
}

void visit_run(Visitor& v, RunOptions& run) {
  v.table("run");
  v.field({"name",
           "Sets the name of the run: letters, digits, '.', '_' and '-'; required.",
           {},
           "give the run a name, as in name = \"fashion\""},
          text(run.name, run_name_error));
  v.field({"folder", "Sets the folder for logs, metrics and checkpoints; default: runs/<name>."},
          text(run.folder));
  v.field({"seed",
           "Sets the seed of all random numbers: initial weights, sample order, augmentation and "
           "dropout."},
          integer(run.seed, at_least(0)));
  v.field({"device", "Selects the device: auto, cpu or cuda; auto takes a GPU if there is one."},
          choice<DeviceChoice>(run.device, {{"auto", DeviceChoice::automatic},
                                            {"cpu", DeviceChoice::cpu},
                                            {"cuda", DeviceChoice::cuda}}));
  v.field({"deterministic",
           "Makes results bitwise equal at every power of two of data-parallel ranks and after "
           "restarts; false is faster."},
          flag(run.deterministic));
  v.field({"graphs",
           "Submits the repeated GPU work of steps as CUDA graphs; false submits kernel by kernel.",
           {run.device != DeviceChoice::cpu, "device = \"auto\" or \"cuda\"", "run.device"}},
          flag(run.graphs));
  v.field({"stop",
           "Sets the length of the run, in epochs, steps, samples, tokens or time, as in \"10 "
           "epochs\"."},
          duration(run.stop, DurationUnits::counts_or_times, true));
  v.field(
      {"walltime",
       "Limits the wall-clock time: a time, \"none\", or \"auto\" for the limit of the batch job."},
      walltime(run.walltime_auto, run.walltime));
  v.field({"walltime_margin",
           "Sets the time reserved before the end of walltime for the last checkpoint, as in \"5 "
           "minutes\".",
           {run.walltime_auto || run.walltime, "walltime = \"auto\" or a time", "run.walltime"}},
          duration(run.walltime_margin, DurationUnits::times, false));
}

// Larger than any batch in use, and small enough that a product with a rank count cannot overflow.
constexpr double max_samples = 1 << 30;

void visit_batch(Visitor& v, BatchOptions& batch) {
  v.table("batch");
  v.field({"global", "Sets the number of samples per optimizer step, over all replicas."},
          left_out_if(!batch.ramp.empty(), integer(batch.global, between(1, max_samples))));
  v.field(
      {"ramp",
       "Replaces global by rows of [duration, samples]: each row sets the samples per step from "
       "that point of the run."},
      ramp(batch.ramp, batch.global, between(1, max_samples)));
  v.field({"micro",
           "Sets the number of samples per forward pass of one replica; global must be a multiple "
           "of micro * data."},
          integer(batch.micro, between(1, max_samples)));
}

void visit_precision(Visitor& v, PrecisionOptions& precision) {
  v.table("precision");
  v.field({"compute",
           "Selects the precision of computation: float32, tfloat32, bfloat16, float16 or float8; "
           "weights are kept in float32."},
          choice<ComputePrecision>(precision.compute, {{"float32", ComputePrecision::float32},
                                                       {"tfloat32", ComputePrecision::tfloat32},
                                                       {"bfloat16", ComputePrecision::bfloat16},
                                                       {"float16", ComputePrecision::float16},
                                                       {"float8", ComputePrecision::float8}}));
  v.field(
      {"reduce",
       "Selects the type in which data-parallel ranks exchange gradients: float32 or bfloat16."},
      choice<DType>(precision.reduce,
                    {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}}));
  optim::visit_keys(v,
                    {precision.compute == ComputePrecision::float16,
                     "precision.compute = \"float16\"", "precision.compute"},
                    precision.loss_scale);
}

// A larger number means no limit in practice.
constexpr double max_bad_steps = 1e6;

void visit_health(Visitor& v, HealthOptions& health) {
  v.table("health");
  v.field(
      {"skip_nonfinite",
       "Skips steps whose loss or gradient is not finite; false ends the run with exit code 76."},
      flag(health.skip_nonfinite));
  const AppliesTo skipping{health.skip_nonfinite, "skip_nonfinite = true", "health.skip_nonfinite"};
  v.field({"spike_ratio",
           "Skips a step whose loss exceeds this many times its running mean; 0 turns it off."},
          real(health.spike_ratio, at_least(0)));
  v.field({"spike_warn",
           "Reports a loss that exceeds this many times its running mean; 0 turns it off."},
          real(health.spike_warn, at_least(0)));
  v.field({"grad_norm_warn", "Reports a gradient whose 2-norm exceeds this value; 0 turns it off."},
          real(health.grad_norm_warn, at_least(0)));
  v.field({"rollback_after",
           "Sets the number of consecutive skipped steps after which the run returns to the newest "
           "checkpoint.",
           skipping},
          integer(health.rollback_after, between(1, max_bad_steps)));
  v.field({"rollbacks",
           "Sets the largest number of rollbacks of a run; the next one ends it with exit code 76.",
           skipping},
          integer(health.rollbacks, between(0, max_bad_steps)));
  v.field({"compare_replicas",
           "Sets the interval at which hashes of replicated weights are compared, as in \"1000 "
           "steps\"; \"none\" turns it off."},
          optional_duration(health.compare_replicas, DurationUnits::counts, true));
  v.field({"watchdog",
           "Sets the shortest deadline after which a rank without a heartbeat counts as hung, as "
           "in \"2 minutes\"; \"none\" turns it off."},
          optional_duration(health.watchdog, DurationUnits::times, true));
}

}  // namespace

void visit(Visitor& v, Deck& deck) {
  static const std::string image_models =
      fmt::format("image models (model.{})", model::kinds_with(SampleKind::image));
  visit_run(v, deck.run);
  model::visit_keys(v, deck.model);
  const AppliesTo images{family_of(deck.model).input == SampleKind::image, image_models.c_str(),
                         "model.kind"};
  data::visit_keys(v, images, deck.target);
  static const std::string maps =
      "target." + kinds_of_targets([](const Answer& answer) { return answer.is_map; });
  data::visit_keys(v, images, {deck.target.answer().is_map, maps.c_str(), "target.kind"},
                   deck.data);
  model::visit_keys(v, answer_of(deck).kind, deck.loss);
  visit_batch(v, deck.batch);
  parallel::visit_keys(v, deck.parallel);
  visit_precision(v, deck.precision);
  optim::visit_keys(v, deck.schedule, deck.optimizer);
  optim::visit_keys(v, *deck.optimizer.rule, deck.schedule);
  v.table("evaluate");
  v.field({"every",
           "Sets the interval between evaluations on data.validation, as in \"1 epoch\".",
           {!deck.data.validation.empty(), "a deck with data.validation", "data.validation"}},
          duration(deck.evaluate.every, DurationUnits::counts, true));
  v.field(
      {"subset",
       "Sets the number of samples of evaluations during training, chosen once at random; 0 and "
       "at the end: all."},
      integer(deck.evaluate.subset, at_least(0)));
  checkpoint::visit_keys(v, deck.checkpoint);
  visit_health(v, deck.health);
  monitor::visit_keys(v, deck.monitor);
  v.table("debug");
  v.field({"fault",
           "Injects faults for tests, as in \"kill rank 2 step 17\"; needs train --allow-faults."},
          faults(deck.debug.faults));
  v.field({"device",
           "Selects an emulated device for tests: auto or emulated; needs train --allow-faults."},
          omitted_if_default(
              deck.debug.device, DebugDevice::automatic,
              choice<DebugDevice>(deck.debug.device, {{"auto", DebugDevice::automatic},
                                                      {"emulated", DebugDevice::emulated}})));
  v.field(
      {"fusions",
       "Allows fused operations of GPU libraries and fast forms of CPU convolutions; false runs "
       "every operation by itself, to find one with wrong results."},
      flag(deck.debug.fusions));
  v.field({"fused_softmax",
           "Computes loss and gradient of a language model in one kernel, in place, on logits in "
           "compute precision; not yet confirmed on a GPU."},
          omitted_if_default(deck.debug.fused_softmax, false, flag(deck.debug.fused_softmax)));
  v.field({"joined_norms",
           "Computes the last batch norm of a residual block together with the norm of its "
           "shortcut; not yet confirmed on a GPU."},
          omitted_if_default(deck.debug.joined_norms, false, flag(deck.debug.joined_norms)));
}

}  // namespace trireme::deck
