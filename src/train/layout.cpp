// SPDX-License-Identifier: Apache-2.0
//
// Resolves the layout of a run: ranks, micro-batches, steps.
//
// Every refusal names the key, the reason and the nearest valid value. Called by `trireme check`,
// `train` and `evaluate` before any memory is allocated.
#include "trireme/train/layout.hpp"

#include <algorithm>
#include <optional>

#include "trireme/base/check.hpp"
#include "trireme/base/text.hpp"
#include "trireme/data/sampler.hpp"
#include "trireme/deck/batch_rule.hpp"
#include "trireme/model/family.hpp"
#include "trireme/ops/linear.hpp"
#include "trireme/optim/schedule.hpp"

namespace trireme::train {

namespace {

/// Returns the number of data ranks. Throws InputError if the ranks do not form whole replicas.
int resolve_data_ranks(const parallel::ParallelOptions& options, int ranks) {
  const std::int64_t inner = std::int64_t{options.tensor} * options.pipeline;
  if (options.data == 0) {
    const bool split = options.tensor > 1;
    validate(ranks % inner == 0,
             "parallel.{} = {}: a replica of the model takes {} ranks (tensor = {} x pipeline = "
             "{}), which do not divide the run's {}; start {} ranks",
             split ? "tensor" : "pipeline", split ? options.tensor : options.pipeline, inner,
             options.tensor, options.pipeline, ranks, nearest_multiples(ranks, inner));
    return static_cast<int>(ranks / inner);
  }
  validate(options.data * inner == ranks,
           "parallel.data = {}, tensor = {}, pipeline = {} make {} ranks, but the run has {}; "
           "start {} ranks, or use parallel.data = \"auto\"",
           options.data, options.tensor, options.pipeline, options.data * inner, ranks,
           options.data * inner);
  return options.data;
}

/// Returns the shape of a micro-batch of the model.
Shape input_shape(const model::ModelOptions& options, const data::DatasetInfo& train,
                  std::int64_t micro) {
  if (takes_tokens(options)) return {micro, family_of(options).context(options)};
  return {micro, train.height, train.width, train.channels};
}

/// Returns the number of blocks of the model, without the head.
int block_count(model::ModelOptions options, const data::DatasetInfo& train) {
  const model::Family& family = family_of(options);
  const Shape input = input_shape(options, train, 1);
  if (!takes_tokens(options)) return model::Model(options, input, train.target).block_count();
  if (family.vocabulary(options) == 0) family.set_vocabulary(options, train.vocabulary);
  return model::Model(options, input, {family.vocabulary(options)}).block_count();
}

/// Throws InputError if the model has fewer blocks than the pipeline has chunks.
void validate_stages(const LayoutRequest& request, const data::DatasetInfo& train) {
  const int stages = request.parallel.pipeline, chunks = request.parallel.pipeline_chunks;
  if (stages == 1) return;
  const int blocks = block_count(request.model, train), max_stages = blocks / chunks;
  if (stages > max_stages) {
    const std::string remedy =
        chunks == 1 || max_stages > 1
            ? fmt::format("use parallel.pipeline = {} or less", std::max(max_stages, 1))
            : fmt::format(
                  "use parallel.pipeline_schedule = \"1f1b\", pipeline_chunks = 1 and pipeline = "
                  "{} or less",
                  std::max(blocks, 1));
    throw InputError(fmt::format(
        "parallel.pipeline = {} cuts the model into {} parts (pipeline_chunks = {}), "
        "but it has only {} (the head goes with the last one); {}",
        stages, std::int64_t{stages} * chunks, chunks, counted(blocks, "block", "blocks"), remedy));
  }
}

/// Throws InputError unless an interleaved pipeline gets whole groups of micro-batches.
void validate_interleaving(const LayoutRequest& request, const ResolvedLayout& layout) {
  const int stages = request.parallel.pipeline;
  if (stages == 1) return;
  const std::int64_t group = request.batch.micro * layout.data * stages;
  const char* name = request.batch.ramp.empty() ? "batch.global" : "samples of a step";
  validate(request.parallel.pipeline_schedule != parallel::PipelineKind::interleaved ||
               layout.accumulation % stages == 0,
           "{} = {} makes {} micro-batches a replica, which is not a multiple of "
           "parallel.pipeline = {} (pipeline_schedule = \"interleaved\" takes them "
           "in such groups); "
           "use {} = {}, or pipeline_schedule = \"1f1b\" with pipeline_chunks = 1",
           name, layout.global, layout.accumulation, stages, name,
           nearest_multiples(layout.global, group));
}

/// Returns the rows of a sample in matrix products and convolutions.
std::int64_t rows_of_sample(const model::ModelOptions& model, const data::DatasetInfo& train) {
  if (train.kind == data::DatasetKind::tokens) return std::max<std::int64_t>(train.context, 1);
  return family_of(model).flattens ? 1 : train.height * train.width;
}

// Checkpoints hold counts up to 2^53, which are exact in any reader of HDF5.
constexpr double max_samples = 0x1p53;

/// Returns the rows of batch.ramp as steps and samples, none without a ramp. `scale`: without rows.
/// Throws InputError if a row does not begin after the one before it, or if no run reaches it.
std::vector<StepRow> resolve_ramp(const deck::BatchOptions& batch, StepScale scale) {
  for (const deck::RampRow& row : batch.ramp) {
    StepRow resolved{.samples_per_step = row.global};
    if (!scale.rows.empty()) {
      const StepRow& before = scale.rows.back();
      const std::int64_t steps = steps_of_key("batch.ramp", row.from, scale);
      validate(steps >= before.first_step,
               "batch.ramp: its row \"{}\" begins after step {}, not later than the row before it, "
               "which begins after step {}; give it a later point",
               to_string(row.from), steps, before.first_step - 1);
      validate(static_cast<double>(before.first_sample) +
                       static_cast<double>(steps - before.first_step + 1) *
                           static_cast<double>(before.samples_per_step) <=
                   max_samples,
               "batch.ramp: its row \"{}\" begins after more than 2^53 samples, which no run "
               "reaches; give it an earlier point, or remove it",
               to_string(row.from));
      resolved.first_step = steps + 1;
      resolved.first_sample = scale.samples_after(steps);
    }
    scale.rows.push_back(resolved);
  }
  return scale.rows;
}

/// Sets samples, steps and their scale, without those of a row. Throws InputError as
/// resolve_layout() does.
void resolve_steps(const LayoutRequest& request, const data::DatasetInfo& train,
                   ResolvedLayout& layout) {
  const bool has_ramp = !request.batch.ramp.empty();
  const std::int64_t global = request.batch.max_global();
  const std::string key = has_ramp ? "the largest batch of batch.ramp" : "batch.global";
  validate(train.samples > 0, "data.train = \"{}\" holds no samples", request.data.train);
  layout.samples = train.samples;
  if (request.data.samples > 0) {
    validate(request.data.samples <= train.samples,
             "data.samples = {}: data.train = \"{}\" holds only {}; use {} or less, or 0 for all",
             request.data.samples, request.data.train, counted(train.samples, "sample", "samples"),
             train.samples);
    layout.samples = request.data.samples;
    validate(
        !request.data.drop_last || layout.samples >= global,
        "data.samples = {} is less than {} = {}, so no epoch has a step of it; use {} or more, or "
        "data.drop_last = false",
        layout.samples, key, global, global);
  }
  validate(!request.data.drop_last || layout.samples >= global,
           "data.train = \"{}\" holds {}, fewer than {} = {}, so no epoch has a step of it; use {} "
           "or less, or data.drop_last = false",
           request.data.train, counted(train.samples, "sample", "samples"), key, global,
           train.samples);
  layout.batching = {layout.samples, global, request.data.drop_last};
  layout.samples_per_epoch = layout.batching.samples_per_epoch();
  layout.scale = {.samples_per_step = request.batch.global,
                  .samples_per_epoch = layout.samples_per_epoch,
                  .tokens_per_sample = train.context};
  layout.scale.rows = resolve_ramp(request.batch, layout.scale);

  if (!request.run.stop.is_time())
    layout.total_steps = steps_of_key("run.stop", request.run.stop, layout.scale);
  layout.schedule_steps =
      request.schedule.length
          ? steps_of_key("schedule.length", *request.schedule.length, layout.scale)
          : layout.total_steps;
  const std::int64_t steps = std::max(layout.total_steps, layout.schedule_steps);
  validate(static_cast<double>(steps) * static_cast<double>(global) < 0x1p62,
           "run.stop or schedule.length: {} of {} exceed 2^62 samples; use less",
           counted(steps, "step", "steps"), counted(global, "sample", "samples"));
  if (!has_ramp) return;
  const StepRow& last = layout.scale.rows.back();
  validate(layout.total_steps == 0 || last.first_step <= layout.total_steps,
           "batch.ramp: its row \"{}\" begins after step {}, but run.stop = \"{}\" ends the run "
           "after step {}; remove the row, or train longer",
           to_string(request.batch.ramp.back().from), last.first_step - 1,
           to_string(request.run.stop), layout.total_steps);
  // All rows use the same samples of an epoch, so that epochs count samples. A step of a batch that
  // does not divide them takes its last samples from the next epoch.
  layout.batching.samples = layout.samples_per_epoch;
  layout.batching.drop_last = false;
}

// A step keeps a list of its micro-batches.
constexpr std::int64_t max_accumulation = std::int64_t{1} << 20;

/// Sets the micro-batches of a step. Throws InputError if the batch does not fit the mesh.
void resolve_micro_batches(const LayoutRequest& request, ResolvedLayout& layout) {
  const deck::BatchOptions batch{
      .global = layout.global, .micro = request.batch.micro, .ramp = request.batch.ramp};
  if (const auto broken = deck::broken_batch_rule(batch, request.data.augment.mixing, layout.data,
                                                  request.parallel.data == 0))
    throw InputError(broken->message);
  layout.accumulation = batch.global / (batch.micro * layout.data);
  validate(layout.accumulation <= max_accumulation,
           "batch.micro = {}: a step of {} has {} micro-batches on each replica, which are more "
           "than {}; use larger ones, or a smaller step",
           batch.micro, counted(batch.global, "sample", "samples"), layout.accumulation,
           max_accumulation);
  validate_interleaving(request, layout);
}

/// Returns the layout of a row of the ramp, or of the whole run without a ramp. Throws InputError
/// if its batch does not fit the mesh.
ResolvedLayout resolve_row(const LayoutRequest& request, ResolvedLayout layout, std::size_t index) {
  const std::vector<StepRow>& rows = layout.scale.rows;
  if (!rows.empty()) {
    layout.scale.samples_per_step = rows[index].samples_per_step;
    layout.row_begin = rows[index].first_step - 1;
    if (index + 1 < rows.size()) layout.row_end = rows[index + 1].first_step - 1;
  }
  layout.global = layout.batching.global_batch = layout.scale.samples_per_step;
  layout.steps_per_epoch = (layout.samples_per_epoch + layout.global - 1) / layout.global;
  try {
    resolve_micro_batches(request, layout);
  } catch (const InputError& error) {
    if (rows.empty()) throw;
    throw InputError(fmt::format("batch.ramp: its row of {}: {}",
                                 counted(layout.global, "sample", "samples"), error.what()));
  }
  return layout;
}

}  // namespace

std::int64_t min_ranks(const parallel::ParallelOptions& options) {
  const int group = options.sync_batch_norm == parallel::ParallelOptions::all_data_ranks
                        ? 2
                        : options.sync_batch_norm,
            data = options.data > 0 ? options.data : std::max(group, 1);
  return std::int64_t{data} * options.tensor * options.pipeline;
}

void validate_replica(const LayoutRequest& request, const data::DatasetInfo& train) {
  const std::int64_t rows = rows_of_sample(request.model, train);
  validate(request.batch.micro <= ops::max_rows / rows,
           "batch.micro = {}: with {} {} a sample a micro-batch has more rows than a matrix "
           "product can count ({}); use {} or less",
           request.batch.micro, rows, train.kind == data::DatasetKind::tokens ? "tokens" : "pixels",
           ops::max_rows, ops::max_rows / rows);
  if (request.parallel.sequence) {
    const auto broken =
        family_of(request.model)
            .broken_row_rule(request.model, input_shape(request.model, train, request.batch.micro),
                             request.parallel.tensor, {});
    if (broken) throw InputError(fmt::format("{}: {}", broken->key, broken->message));
  }
  validate_stages(request, train);
}

std::vector<ResolvedLayout> resolve_rows(const LayoutRequest& request,
                                         const data::DatasetInfo& train, int ranks) {
  ResolvedLayout common;
  common.data = resolve_data_ranks(request.parallel, ranks);
  common.tensor = request.parallel.tensor;
  common.pipeline = request.parallel.pipeline;
  if (const auto broken =
          deck::broken_batch_norm_rule(request.parallel, common.data, request.parallel.data == 0))
    throw InputError(broken->message);
  if (const int group = request.parallel.sync_batch_norm; group != 0)
    common.batch_norm_ranks =
        group == parallel::ParallelOptions::all_data_ranks ? common.data : group;
  validate_replica(request, train);
  // Steps: samples and steps per epoch, total steps, length of the schedule.
  resolve_steps(request, train, common);
  std::vector<ResolvedLayout> layouts;
  for (std::size_t row = 0; row < std::max<std::size_t>(1, common.scale.rows.size()); ++row)
    layouts.push_back(resolve_row(request, common, row));
  // The constructor checks the durations of the schedule.
  const optim::Schedule schedule(request.schedule, request.batch.global, common.schedule_steps,
                                 common.scale);
  return layouts;
}

ResolvedLayout resolve_layout(const LayoutRequest& request, const data::DatasetInfo& train,
                              int ranks, std::int64_t steps_done) {
  for (ResolvedLayout& layout : resolve_rows(request, train, ranks))
    if (layout.contains_step(steps_done + 1)) return std::move(layout);
  TRIREME_EXPECT(false);
  return {};
}

std::optional<double> scheduled_rate(const LayoutRequest& request, const data::DatasetInfo& train,
                                     std::int64_t step, std::int64_t reductions) {
  try {
    ResolvedLayout layout;
    resolve_steps(request, train, layout);
    return optim::Schedule(request.schedule, request.batch.global, layout.schedule_steps,
                           layout.scale)
        .rate(step, reductions);
  } catch (const InputError&) {
    return std::nullopt;
  }
}

void validate_subset(const deck::EvaluateOptions& evaluate, const data::DatasetInfo& validation) {
  validate(evaluate.subset < validation.samples,
           "evaluate.subset = {}: data.validation holds only {}; use less, or 0 for all",
           evaluate.subset, counted(validation.samples, "sample", "samples"));
}

}  // namespace trireme::train
