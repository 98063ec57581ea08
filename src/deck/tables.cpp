// Declares every table and key of the deck, once, for reading and for writing.
//
// A key has a name, an optional condition (AppliesTo: it exists only for some `kind`), advice for
// the case that it is missing, and a field that reads and writes its value (fields.hpp).
// visit() at the end of the file calls the tables in the order in which the deck is written. A
// table's own `kind` is visited first, because the conditions of the following keys depend on it.
#include "tables.hpp"

#include <initializer_list>

#include <fmt/format.h>

namespace trireme::deck {

namespace {

/// Declares keys of kinds that this version does not implement, so that they are reported as such
/// and not as unknown.
void visit_reserved_keys(Visitor& visitor, const char* condition,
                         std::initializer_list<const char*> names) {
  for (const char* name : names) visitor.field({name, {false, condition}}, {});
}

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

void visit_run(Visitor& v, train::RunOptions& run) {
  using train::DeviceChoice;
  v.table("run");
  v.field({"name", {}, "give the run a name, as in name = \"fashion\""},
          text(run.name, run_name_error));
  v.field({"folder"}, text(run.folder));
  v.field({"seed"}, integer(run.seed, at_least(0)));
  v.field({"device"}, choice<DeviceChoice>(run.device, {{"auto", DeviceChoice::automatic},
                                                        {"cpu", DeviceChoice::cpu},
                                                        {"cuda", DeviceChoice::cuda}}));
  v.field({"deterministic"}, flag(run.deterministic));
  v.field({"graphs"}, flag(run.graphs));
  v.field({"stop"}, duration(run.stop, DurationUnits::counts_or_times, true));
  v.field({"walltime"}, walltime(run.walltime_auto, run.walltime));
  v.field({"walltime_margin"}, duration(run.walltime_margin, DurationUnits::times, false));
}

// Larger than any model in use, and small enough that products of extents cannot overflow.
constexpr double max_layers = 1024, max_width = 65536, max_length = 1 << 20,
                 max_vocabulary = 1 << 24;

/// Keys of [model] for kind = "gpt".
void visit_gpt(Visitor& v, const AppliesTo& condition, model::TransformerOptions& gpt) {
  using namespace model;
  v.field({"layers", condition}, integer(gpt.layers, between(1, max_layers)));
  v.field({"heads", condition}, integer(gpt.heads, between(1, max_width)));
  v.field({"kv_heads", condition}, optional_integer(gpt.kv_heads, between(1, max_width)));
  v.field({"mlp_width", condition}, optional_integer(gpt.mlp_width, between(1, max_length)));
  v.field({"context", condition}, integer(gpt.context, between(1, max_length)));
  v.field({"vocabulary", condition}, optional_integer(gpt.vocabulary, between(2, max_vocabulary)));
  v.field({"mlp", condition},
          choice<MlpKind>(gpt.mlp, {{"gelu", MlpKind::gelu}, {"swiglu", MlpKind::swiglu}}));
  v.field({"positions", condition},
          choice<PositionKind>(gpt.positions,
                               {{"learned", PositionKind::learned}, {"rope", PositionKind::rope}}));
  v.field({"bias", condition}, flag(gpt.bias));
  v.field({"tie_embeddings", condition}, flag(gpt.tie_embeddings));
  v.field({"dropout", condition}, real(gpt.dropout, half_open(0, 1)));
}

void visit_model(Visitor& v, model::ModelOptions& model) {
  using namespace model;
  v.table("model");
  v.field({"kind"},
          choice<ModelKind>(
              model.kind,
              {{"resnet", ModelKind::resnet}, {"mlp", ModelKind::mlp}, {"gpt", ModelKind::gpt}},
              {"vit"}));
  const bool is_resnet = model.kind == ModelKind::resnet, is_gpt = model.kind == ModelKind::gpt;
  const AppliesTo resnet{is_resnet, "kind = \"resnet\""},
      mlp{model.kind == ModelKind::mlp, "kind = \"mlp\""}, gpt{is_gpt, "kind = \"gpt\""};
  const AppliesTo resnet_or_gpt{is_resnet || is_gpt, "kind = \"resnet\" or \"gpt\""};
  // The CIFAR form has three stages of (depth - 2) / 6 blocks; the other depths are of the ImageNet
  // form (He et al. 2016, table 1).
  v.field({"depth", resnet, "choose for instance depth = 20 (CIFAR form) or 50 (ImageNet form)"},
          one_of(model.depth, {8, 14, 18, 20, 26, 32, 34, 38, 44, 50, 56, 101, 152}));
  v.field({"width", resnet_or_gpt},
          integer(is_gpt ? model.gpt.width : model.width, between(1, max_width)));
  v.field({"stem", resnet}, choice<ResnetStem>(model.stem, {{"imagenet", ResnetStem::imagenet},
                                                            {"small", ResnetStem::small}}));
  v.field({"norm", resnet_or_gpt, nullptr, true},
          is_gpt ? choice<NormKind>(model.gpt.norm,
                                    {{"layer", NormKind::layer}, {"rms", NormKind::rms}})
                 : choice<ResnetNorm>(
                       model.norm, {{"batch", ResnetNorm::batch}, {"group", ResnetNorm::group}}));
  v.field({"zero_init_residual", resnet}, flag(model.zero_init_residual));
  v.field({"widths", mlp, "give the extents of the hidden layers, as in widths = [512, 256]"},
          extents(model.widths));
  visit_gpt(v, gpt, model.gpt);
  visit_reserved_keys(v, "kind = \"vit\", which is not available in this version of Trireme",
                      {"patch", "mlp_ratio"});
}

void visit_data(Visitor& v, model::ModelKind kind, data::DataOptions& data) {
  using data::Shuffle;
  v.table("data");
  v.field({"train",
           {},
           "name the folder of the training set, as in train = \"data/fashion/train\" (trireme "
           "shard makes one)"},
          text(data.train));
  v.field({"validation"}, optional_text(data.validation));
  v.field({"test"}, optional_text(data.test));
  v.field({"shuffle"}, choice<Shuffle>(data.shuffle, {{"full", Shuffle::full},
                                                      {"blocks", Shuffle::blocks},
                                                      {"none", Shuffle::none}}));
  const AppliesTo blocks{data.shuffle == Shuffle::blocks, "shuffle = \"blocks\""};
  v.field({"shuffle_block", blocks}, integer(data.shuffle_block, at_least(1)));
  v.field({"shuffle_window", blocks}, integer(data.shuffle_window, at_least(1)));
  v.field({"workers"}, integer(data.workers, between(1, 1024)));
  v.field({"prefetch"}, integer(data.prefetch, between(1, 1024)));
  v.field({"drop_last"}, flag(data.drop_last));

  v.table("data.augment");
  const AppliesTo images{kind != model::ModelKind::gpt,
                         "image models (model.kind = \"resnet\" or \"mlp\")"};
  v.field({"normalize", images}, normalize(data.augment.mean, data.augment.std));
  v.field({"random_crop", images}, random_crop(data.augment.random_crop));
  v.field({"flip", images}, flag(data.augment.flip));
  for (const char* name :
       {"random_resized_crop", "color_jitter", "rand_augment", "erase", "mixup", "cutmix"})
    v.field({name, images}, unavailable({"false", "0"}));
}

// Larger than any batch in use, and small enough that a product with a rank count cannot overflow.
constexpr double max_samples = 1 << 30;

void visit_batch(Visitor& v, train::BatchOptions& batch) {
  v.table("batch");
  v.field({"global"}, integer(batch.global, between(1, max_samples)));
  v.field({"micro"}, integer(batch.micro, between(1, max_samples)));
}

// No model has more blocks to distribute or more heads to split.
constexpr double max_splits = 1024;

void visit_parallel(Visitor& v, parallel::ParallelOptions& parallel) {
  using parallel::PipelineKind;
  using parallel::ShardKind;
  v.table("parallel");
  v.field({"data"}, data_ranks(parallel.data));
  v.field({"tensor"}, integer(parallel.tensor, between(1, max_splits)));
  v.field({"pipeline"}, integer(parallel.pipeline, between(1, max_splits)));
  v.field({"pipeline_schedule"},
          choice<PipelineKind>(parallel.pipeline_schedule,
                               {{"gpipe", PipelineKind::gpipe},
                                {"1f1b", PipelineKind::one_forward_one_backward},
                                {"interleaved", PipelineKind::interleaved}}));
  v.field({"pipeline_chunks"}, integer(parallel.pipeline_chunks, between(1, max_splits)));
  v.field({"shard"}, choice<ShardKind>(parallel.shard, {{"none", ShardKind::none},
                                                        {"optimizer", ShardKind::optimizer},
                                                        {"gradients", ShardKind::gradients},
                                                        {"parameters", ShardKind::parameters}}));
  v.field({"sequence"}, flag(parallel.sequence));
  v.field({"recompute"}, recompute(parallel.recompute));
  v.field({"offload"}, offload(parallel.offload));
  v.field({"sync"}, sync(parallel.sync, parallel.sync_every));
  v.field({"outer_momentum"}, real(parallel.outer_momentum, half_open(0, 1)));
  v.field({"bucket_mb"}, real(parallel.bucket_mb, {.min = 0, .max = 1e6, .min_open = true}));
  v.field({"sync_batch_norm"}, unavailable({"false"}));
}

void visit_precision(Visitor& v, train::PrecisionOptions& precision) {
  v.table("precision");
  using train::ComputePrecision;
  v.field({"compute"},
          choice<ComputePrecision>(precision.compute, {{"float32", ComputePrecision::float32},
                                                       {"tfloat32", ComputePrecision::tfloat32},
                                                       {"bfloat16", ComputePrecision::bfloat16},
                                                       {"float16", ComputePrecision::float16},
                                                       {"float8", ComputePrecision::float8}}));
  v.field({"reduce"},
          choice<DType>(precision.reduce,
                        {{"float32", DType::float32}, {"bfloat16", DType::bfloat16}}, {"float16"}));
  v.table("precision.loss_scale");
  using optim::LossScaleOptions;
  LossScaleOptions& scale = precision.loss_scale;
  const AppliesTo float16{precision.compute == ComputePrecision::float16,
                          "precision.compute = \"float16\""};
  v.field({"initial", float16}, power_of_two(scale.initial, between(LossScaleOptions::min_scale,
                                                                    LossScaleOptions::max_scale)));
  v.field(
      {"growth", float16},
      power_of_two(scale.growth, {.min = 1, .max = LossScaleOptions::max_scale, .min_open = true}));
  v.field({"backoff", float16},
          power_of_two(scale.backoff, {.min = 0, .max = 1, .min_open = true, .max_open = true}));
  v.field({"interval", float16}, integer(scale.interval, at_least(1)));
}

void visit_optimizer(Visitor& v, optim::OptimizerOptions& optimizer) {
  using optim::OptimizerKind;
  v.table("optimizer");
  v.field({"kind"}, choice<OptimizerKind>(optimizer.kind, {{"sgd", OptimizerKind::sgd},
                                                           {"adamw", OptimizerKind::adamw},
                                                           {"lars", OptimizerKind::lars},
                                                           {"lamb", OptimizerKind::lamb}}));
  const bool is_sgd = optimizer.kind == OptimizerKind::sgd,
             is_lars = optimizer.kind == OptimizerKind::lars;
  const AppliesTo with_momentum{is_sgd || is_lars, "kind = \"sgd\" or \"lars\""},
      sgd{is_sgd, "kind = \"sgd\""}, lars{is_lars, "kind = \"lars\""};
  const AppliesTo adaptive{
      optimizer.kind == OptimizerKind::adamw || optimizer.kind == OptimizerKind::lamb,
      "kind = \"adamw\" or \"lamb\""};
  v.field({"weight_decay"}, real(optimizer.weight_decay, at_least(0)));
  v.field({"decay_all"}, flag(optimizer.decay_all));
  v.field({"momentum", with_momentum}, real(optimizer.momentum, half_open(0, 1)));
  v.field({"nesterov", sgd}, flag(optimizer.nesterov));
  v.field({"trust_coefficient", lars}, real(optimizer.trust_coefficient, above(0)));
  v.field({"beta1", adaptive}, real(optimizer.beta1, half_open(0, 1)));
  v.field({"beta2", adaptive}, real(optimizer.beta2, half_open(0, 1)));
  v.field({"epsilon", adaptive}, real(optimizer.epsilon, above(0)));
  v.field({"clip_norm"}, real(optimizer.clip_norm, at_least(0)));
  v.field({"ema"}, real(optimizer.ema, half_open(0, 1)));
}

void visit_schedule(Visitor& v, optim::ScheduleOptions& schedule) {
  using optim::RateScaling;
  using optim::ScheduleKind;
  v.table("schedule");
  v.field({"kind"}, choice<ScheduleKind>(
                        schedule.kind,
                        {{"constant", ScheduleKind::constant}, {"cosine", ScheduleKind::cosine}},
                        {"step", "exponential", "restarts", "plateau", "one-cycle", "polynomial"}));
  v.field({"rate"}, real(schedule.rate, above(0)));
  v.field({"base_batch"}, integer(schedule.base_batch, at_least(1)));
  v.field({"scaling"}, choice<RateScaling>(schedule.scaling, {{"none", RateScaling::none},
                                                              {"linear", RateScaling::linear},
                                                              {"sqrt", RateScaling::sqrt}}));
  v.field({"warmup"}, optional_duration(schedule.warmup, DurationUnits::counts, false));
  v.field({"length"}, optional_duration(schedule.length, DurationUnits::counts, true));
  v.field({"min_ratio", {schedule.kind == ScheduleKind::cosine, "kind = \"cosine\""}},
          real(schedule.min_ratio, between(0, 1)));
  visit_reserved_keys(v, "kind = \"step\", which is not available in this version of Trireme",
                      {"milestones", "gamma"});
  visit_reserved_keys(v, "kind = \"plateau\", which is not available in this version of Trireme",
                      {"patience", "factor"});
}

void visit_checkpoint(Visitor& v, checkpoint::CheckpointOptions& checkpoint) {
  v.table("checkpoint");
  v.field({"every"}, duration(checkpoint.every, DurationUnits::counts_or_times, true));
  v.field({"keep"}, integer(checkpoint.keep, at_least(1)));
  v.field({"keep_every"}, optional_duration(checkpoint.keep_every, DurationUnits::counts, true));
  v.field({"best"},
          choice<std::string>(
              checkpoint.best,
              {{"none", ""}, {"top1", "top1"}, {"loss", "loss"}, {"perplexity", "perplexity"}}));
  v.field({"async"}, flag(checkpoint.asynchronous));
}

// A larger number means no limit in practice.
constexpr double max_bad_steps = 1e6;

void visit_health(Visitor& v, train::HealthOptions& health) {
  v.table("health");
  v.field({"skip_nonfinite"}, flag(health.skip_nonfinite));
  v.field({"spike_ratio"}, real(health.spike_ratio, at_least(0)));
  v.field({"spike_warn"}, real(health.spike_warn, at_least(0)));
  v.field({"grad_norm_warn"}, real(health.grad_norm_warn, at_least(0)));
  v.field({"rollback_after"}, integer(health.rollback_after, between(1, max_bad_steps)));
  v.field({"rollbacks"}, integer(health.rollbacks, between(0, max_bad_steps)));
  v.field({"compare_replicas"},
          optional_duration(health.compare_replicas, DurationUnits::counts, true));
  v.field({"watchdog"}, optional_duration(health.watchdog, DurationUnits::times, true));
}

void visit_monitor(Visitor& v, monitor::MonitorOptions& monitor) {
  v.table("monitor");
  v.field({"every"}, duration(monitor.every, DurationUnits::counts, true));
  v.field({"tensorboard"}, flag(monitor.tensorboard));
  v.field({"trace"}, step_range(monitor.trace));
  v.field({"profile"}, unavailable({"false"}));
}

}  // namespace

void visit(Visitor& v, Deck& deck) {
  visit_run(v, deck.run);
  visit_model(v, deck.model);
  visit_data(v, deck.model.kind, deck.data);
  v.table("loss");
  v.field({"label_smoothing"}, real(deck.loss.label_smoothing, half_open(0, 1)));
  visit_batch(v, deck.batch);
  visit_parallel(v, deck.parallel);
  visit_precision(v, deck.precision);
  visit_optimizer(v, deck.optimizer);
  visit_schedule(v, deck.schedule);
  v.table("evaluate");
  v.field({"every"}, duration(deck.evaluate.every, DurationUnits::counts, true));
  v.field({"subset"}, unavailable({"0"}));
  visit_checkpoint(v, deck.checkpoint);
  visit_health(v, deck.health);
  visit_monitor(v, deck.monitor);
  v.table("debug");
  v.field({"fault"}, faults(deck.debug.faults));
  v.field({"device"},
          omitted_if_default(deck.debug.device, train::DebugDevice::automatic,
                             choice<train::DebugDevice>(
                                 deck.debug.device, {{"auto", train::DebugDevice::automatic},
                                                     {"emulated", train::DebugDevice::emulated}})));
}

}  // namespace trireme::deck
