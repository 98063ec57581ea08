// SPDX-License-Identifier: Apache-2.0
//
// Declares every table and key of the deck, once, for reading and for writing.
//
// A key has a name, its meaning in one sentence, an optional condition, advice for the case that it
// is missing, and a field that reads and writes its value (fields.hpp).
// visit() at the end of the file calls the tables in the order in which the deck is written. A key
// that decides a condition is visited before the keys that depend on it.
//
// A condition (AppliesTo) says beside which values of another key a key has an effect. A key with a
// value that means "off" has none: a contradiction refuses its other values instead, and "off"
// stays valid (parallel.outer_momentum = 0).
#include "tables.hpp"

#include <fmt/format.h>

namespace trireme::deck {

namespace {

constexpr int max_ranks = 1 << 20;

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

// Larger than any model in use, and small enough that products of extents cannot overflow.
constexpr double max_layers = 1024, max_width = 65536, max_length = 1 << 20,
                 max_vocabulary = 1 << 24, max_head_tile_mb = 1 << 16, max_rope_base = 1e12;
// A row of zeros must not divide by zero in float32; a larger number would hide the variance.
constexpr double min_norm_epsilon = 1e-12, max_norm_epsilon = 0.1;

/// Keys of [model] for kind = "gpt".
void visit_gpt(Visitor& v, const AppliesTo& condition, model::TransformerOptions& gpt) {
  using namespace model;
  v.field({"layers", "gpt: sets the number of transformer blocks.", condition},
          integer(gpt.layers, between(1, max_layers)));
  v.field({"heads", "gpt: sets the number of attention heads; width must be a multiple of it.",
           condition},
          integer(gpt.heads, between(1, max_width)));
  v.field({"kv_heads",
           "gpt: sets the number of key and value heads, which must divide heads; default: heads.",
           condition},
          optional_integer(gpt.kv_heads, between(1, max_width)));
  v.field({"mlp_width",
           "gpt: sets the width of the mlp; default: 4 width, for swiglu 8/3 width rounded up to a "
           "multiple of 64.",
           condition},
          optional_integer(gpt.mlp_width, between(1, max_length)));
  v.field({"context", "gpt: sets the length of a sample, in tokens.", condition},
          integer(gpt.context, between(1, max_length)));
  v.field({"vocabulary", "gpt: sets the number of different tokens; default: that of data.train.",
           condition},
          optional_integer(gpt.vocabulary, between(2, max_vocabulary)));
  v.field({"mlp", "gpt: selects the activation of the mlp: gelu or swiglu.", condition},
          choice<MlpKind>(gpt.mlp, {{"gelu", MlpKind::gelu}, {"swiglu", MlpKind::swiglu}}));
  v.field({"positions",
           "gpt: selects the position encoding, learned or rope, and thereby GPT-2's or Llama's "
           "tensor names.",
           condition},
          choice<PositionKind>(gpt.positions,
                               {{"learned", PositionKind::learned}, {"rope", PositionKind::rope}}));
  v.field({"rope_base",
           "gpt: sets the base of the frequencies of rotary positions; Llama 3 has 500000.",
           {condition.is_met && gpt.positions == PositionKind::rope, "positions = \"rope\"",
            "model.positions"}},
          real(gpt.rope_base, between(1, max_rope_base)));
  v.field({"norm_epsilon",
           "gpt: sets the number that layer norm adds to the variance, and RMS norm to the mean of "
           "squares.",
           condition},
          real(gpt.norm_epsilon, between(min_norm_epsilon, max_norm_epsilon)));
  v.field(
      {"bias",
       "gpt: gives linear layers a bias; default: true with learned positions, false with rope.",
       condition},
      flag(gpt.bias));
  v.field(
      {"tie_embeddings", "gpt: uses one table for token embedding and output layer.", condition},
      flag(gpt.tie_embeddings));
  v.field(
      {"dropout",
       "gpt: sets the probability that an element is dropped during training, from 0 to below 1.",
       condition},
      real(gpt.dropout, half_open(0, 1)));
  v.field({"head_tile_mb",
           "gpt: sets the MiB of float32 logits that are computed at once; default: 1024 on a GPU, "
           "32 on the CPU.",
           condition},
          optional_integer(gpt.head_tile_mb, between(1, max_head_tile_mb)));
}

void visit_model(Visitor& v, model::ModelOptions& model) {
  using namespace model;
  v.table("model");
  v.field({"kind", "Selects the kind of model: resnet, gpt (transformer) or mlp."},
          choice<ModelKind>(
              model.kind,
              {{"resnet", ModelKind::resnet}, {"mlp", ModelKind::mlp}, {"gpt", ModelKind::gpt}}));
  const bool is_resnet = model.kind == ModelKind::resnet, is_gpt = model.kind == ModelKind::gpt;
  const AppliesTo resnet{is_resnet, "kind = \"resnet\"", "model.kind"},
      mlp{model.kind == ModelKind::mlp, "kind = \"mlp\"", "model.kind"},
      gpt{is_gpt, "kind = \"gpt\"", "model.kind"},
      resnet_or_gpt{is_resnet || is_gpt, "kind = \"resnet\" or \"gpt\"", "model.kind"};
  // The CIFAR form has three stages of (depth - 2) / 6 blocks; the other depths are of the ImageNet
  // form (He et al. 2016, table 1).
  v.field({"depth",
           "resnet: sets the number of layers: 8, 14, 20, 26, 32, 38, 44, 56 (CIFAR form) or 18, "
           "34, 50, 101, 152; required.",
           resnet, "choose for instance depth = 20 (CIFAR form) or 50 (ImageNet form)"},
          one_of(model.depth, {8, 14, 18, 20, 26, 32, 34, 38, 44, 50, 56, 101, 152}));
  v.field({"width", "resnet: sets the channels of the first stage; gpt: sets the embedding width.",
           resnet_or_gpt},
          integer(is_gpt ? model.gpt.width : model.width, between(1, max_width)));
  v.field({"stem",
           "resnet: selects the first layers: imagenet (7x7 convolution and pooling) or small (3x3 "
           "convolution).",
           resnet},
          choice<ResnetStem>(model.stem,
                             {{"imagenet", ResnetStem::imagenet}, {"small", ResnetStem::small}}));
  v.field({"norm", "Selects the normalization: batch or group for resnet, layer or rms for gpt.",
           resnet_or_gpt, nullptr, true},
          is_gpt ? choice<NormKind>(model.gpt.norm,
                                    {{"layer", NormKind::layer}, {"rms", NormKind::rms}})
                 : choice<ResnetNorm>(
                       model.norm, {{"batch", ResnetNorm::batch}, {"group", ResnetNorm::group}}));
  v.field(
      {"zero_init_residual",
       "resnet: starts each residual branch with scale 0, so that blocks start as the identity.",
       resnet},
      flag(model.zero_init_residual));
  v.field({"drop_path",
           "Sets the probability that training drops the branch of the last residual block, from 0 "
           "to below 1; earlier blocks have less.",
           resnet_or_gpt},
          real(is_gpt ? model.gpt.drop_path : model.drop_path, half_open(0, 1)));
  v.field({"widths", "mlp: lists the widths of the hidden layers, as in [512, 256]; required.", mlp,
           "give the extents of the hidden layers, as in widths = [512, 256]"},
          extents(model.widths));
  visit_gpt(v, gpt, model.gpt);
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

// No model has more blocks to distribute or more heads to split.
constexpr double max_splits = 1024;

void visit_parallel(Visitor& v, parallel::ParallelOptions& parallel) {
  using parallel::PipelineKind;
  using parallel::ShardKind;
  v.table("parallel");
  v.field({"data", "Sets the number of data-parallel replicas; auto: ranks / (tensor * pipeline)."},
          automatic_integer(parallel.data, between(1, max_ranks)));
  v.field({"tensor",
           "Sets the number of ranks among which each layer of a gpt is split (tensor "
           "parallelism)."},
          integer(parallel.tensor, between(1, max_splits)));
  v.field({"pipeline", "Sets the number of pipeline stages."},
          integer(parallel.pipeline, between(1, max_splits)));
  v.field({"pipeline_schedule",
           "Selects the order of micro-batches in the pipeline: gpipe, 1f1b or interleaved."},
          choice<PipelineKind>(parallel.pipeline_schedule,
                               {{"gpipe", PipelineKind::gpipe},
                                {"1f1b", PipelineKind::one_forward_one_backward},
                                {"interleaved", PipelineKind::interleaved}}));
  v.field({"pipeline_chunks",
           "Sets the number of model chunks per stage; interleaved needs 2 or more."},
          integer(parallel.pipeline_chunks, between(1, max_splits)));
  v.field({"shard",
           "Selects the state that replicas partition: none, optimizer (ZeRO-1), gradients "
           "(ZeRO-2) or parameters (ZeRO-3)."},
          choice<ShardKind>(parallel.shard, {{"none", ShardKind::none},
                                             {"optimizer", ShardKind::optimizer},
                                             {"gradients", ShardKind::gradients},
                                             {"parameters", ShardKind::parameters}}));
  v.field({"sequence",
           "Also splits activations between tensor-parallel regions by rows (sequence "
           "parallelism); needs tensor > 1."},
          flag(parallel.sequence));
  v.field({"recompute",
           "Selects the blocks whose activations are recomputed in backward: none, all or \"every "
           "n\"."},
          recompute(parallel.recompute));
  v.field({"offload",
           "Lists the state that is kept in host memory: \"optimizer\", \"parameters\", "
           "\"activations\"."},
          offload(parallel.offload));
  v.field({"sync",
           "Selects when replicas synchronize: step, delayed (one step later) or \"every n steps\" "
           "(local SGD)."},
          sync(parallel.sync, parallel.sync_every));
  v.field({"outer_momentum",
           "Sets the momentum of the averaged update of sync = \"every n steps\", from 0 to below "
           "1; 0: plain average."},
          real(parallel.outer_momentum, half_open(0, 1)));
  v.field({"bucket_mb", "Sets the size of a gradient bucket, which is reduced as a unit, in MiB."},
          real(parallel.bucket_mb, {.min = 0, .max = 1e6, .min_open = true}));
  v.field({"sync_batch_norm",
           "Computes batch norm over groups of k neighboring data ranks; true: over all of them, "
           "false: on each rank by itself."},
          rank_group(parallel.sync_batch_norm, between(2, max_ranks)));
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
  v.table("precision.loss_scale");
  using optim::LossScaleOptions;
  LossScaleOptions& scale = precision.loss_scale;
  const AppliesTo float16{precision.compute == ComputePrecision::float16,
                          "precision.compute = \"float16\"", "precision.compute"};
  v.field({"initial", "float16: sets the initial factor of the loss, a power of two.", float16},
          power_of_two(scale.initial,
                       between(LossScaleOptions::min_scale, LossScaleOptions::max_scale)));
  v.field(
      {"growth", "float16: sets the factor by which the loss scale grows, a power of two above 1.",
       float16},
      power_of_two(scale.growth, {.min = 1, .max = LossScaleOptions::max_scale, .min_open = true}));
  v.field(
      {"backoff", "float16: sets the factor after an overflow, a power of two below 1.", float16},
      power_of_two(scale.backoff, {.min = 0, .max = 1, .min_open = true, .max_open = true}));
  v.field({"interval",
           "float16: sets the number of applied steps after which the loss scale grows.", float16},
          integer(scale.interval, at_least(1)));
}

void visit_checkpoint(Visitor& v, checkpoint::CheckpointOptions& checkpoint) {
  v.table("checkpoint");
  v.field({"every", "Sets the interval between checkpoints, as in \"1 epoch\" or \"30 minutes\"."},
          duration(checkpoint.every, DurationUnits::counts_or_times, true));
  v.field({"keep", "Sets the number of newest checkpoints that are kept."},
          integer(checkpoint.keep, at_least(1)));
  v.field({"keep_every",
           "Keeps the first checkpoint at or past each multiple of this duration permanently, as "
           "in \"10 epochs\"; \"none\" turns it off."},
          optional_duration(checkpoint.keep_every, DurationUnits::counts, true));
  v.field({"best",
           "Selects the metric whose best checkpoint is kept as best.h5: loss, top1, perplexity or "
           "none."},
          choice<std::string>(
              checkpoint.best,
              {{"none", ""}, {"top1", "top1"}, {"loss", "loss"}, {"perplexity", "perplexity"}}));
  v.field({"async",
           "Writes checkpoints in a thread while training continues; false lets training wait."},
          flag(checkpoint.asynchronous));
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

void visit_monitor(Visitor& v, monitor::MonitorOptions& monitor) {
  v.table("monitor");
  v.field({"every",
           "Sets the interval between rows of metrics.jsonl and log lines, as in \"10 steps\"."},
          duration(monitor.every, DurationUnits::counts, true));
  v.field({"tensorboard", "Writes TensorBoard event files to the run folder."},
          flag(monitor.tensorboard));
  v.field({"noise_scale",
           "Sets the interval at which the gradient noise scale is measured, as in \"100 steps\"; "
           "\"none\" turns it off."},
          optional_duration(monitor.noise_scale, DurationUnits::counts, true));
  v.field(
      {"tensors",
       "Sets the interval at which norm, gradient and update of every tensor are written, as in "
       "\"100 steps\"; \"none\" turns it off."},
      optional_duration(monitor.tensors, DurationUnits::counts, true));
  v.field(
      {"trace",
       "Records the steps first..last, as in \"10..12\", in trace.json; \"none\" turns it off."},
      step_range(monitor.trace));
  v.field({"machine",
           "Names the machine of the run, as in \"h100\" or \"./node.toml\": rows have mfu, and "
           "the run is compared with its prediction."},
          optional_text(monitor.machine));
}

}  // namespace

void visit(Visitor& v, Deck& deck) {
  visit_run(v, deck.run);
  visit_model(v, deck.model);
  visit_data(v, deck.model.kind, deck.data);
  v.table("loss");
  v.field({"label_smoothing",
           "Sets the share of the label's probability that is spread over all classes, from 0 to "
           "below 1."},
          real(deck.loss.label_smoothing, half_open(0, 1)));
  visit_batch(v, deck.batch);
  visit_parallel(v, deck.parallel);
  visit_precision(v, deck.precision);
  visit_optimizer(v, deck.schedule, deck.optimizer);
  visit_schedule(v, deck.optimizer.kind, deck.schedule);
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
  visit_checkpoint(v, deck.checkpoint);
  visit_health(v, deck.health);
  visit_monitor(v, deck.monitor);
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
