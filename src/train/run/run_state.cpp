// SPDX-License-Identifier: Apache-2.0
//
// Maps a replica and the state of a run to the tensors and metadata of a checkpoint, and back. Used
// by Saver for writing, by restore() for reading, and by Replica::measure() to plan the memory of a
// copy.
#include "trireme/train/run/run_state.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include "trireme/base/check.hpp"
#include "trireme/optim/groups.hpp"

namespace trireme::train {
namespace {

/// Returns a number of a checkpoint's state, or `otherwise` if it is missing or not a number.
template <class T>
T value_or(const checkpoint::Info& info, const std::string& key, T otherwise) {
  const auto found = info.state.find(key);
  if (found == info.state.end()) return otherwise;
  return std::visit(
      [&](const auto& value) -> T {
        using Value = std::decay_t<decltype(value)>;
        if constexpr (std::is_integral_v<T> && std::is_floating_point_v<Value>) {
          constexpr double exact = 9007199254740992;                            // 2^53
          return std::abs(value) <= exact ? static_cast<T>(value) : otherwise;  // not NaN either
        } else if constexpr (std::is_arithmetic_v<Value>) {
          return static_cast<T>(value);
        }
        return otherwise;
      },
      found->second);
}

/// Returns a count of a checkpoint's state; 0 if it is missing. Throws InputError below 0.
std::int64_t state_count(const checkpoint::Info& info, const char* key) {
  const auto count = value_or<std::int64_t>(info, key, 0);
  validate(count >= 0, "the checkpoint's state {} is {}, which no run can write", key, count);
  return count;
}

/// Checks a loss scale from an untrusted checkpoint. Throws InputError.
double checked_scale(double scale, const char* name) {
  int exponent = 0;
  constexpr double least = optim::LossScaleOptions::min_scale,
                   most = optim::LossScaleOptions::max_scale;
  validate(scale >= least && scale <= most && std::frexp(scale, &exponent) == 0.5,
           "the checkpoint's state {} is {}, which no run can write: it must be a power of "
           "two from {} to {}",
           name, scale, least, most);
  return scale;
}

constexpr std::pair<const char*, std::int64_t HealthState::*> health_counters[] = {
    {"health_applied", &HealthState::applied},
    {"health_applied_before", &HealthState::previous_applied},
    {"health_bad_in_a_row", &HealthState::consecutive_dropped},
    {"health_nonfinite", &HealthState::nonfinite},
    {"health_spikes", &HealthState::spikes},
    {"health_warnings", &HealthState::warnings},
    {"health_rollbacks", &HealthState::rollbacks}};

constexpr std::pair<const char*, std::int64_t optim::PlateauState::*> plateau_counters[] = {
    {"plateau_bad_evaluations", &optim::PlateauState::bad_evaluations},
    {"plateau_cooldown_left", &optim::PlateauState::cooldown_left},
    {"plateau_reductions", &optim::PlateauState::reductions}};

/// Returns whether the values of a type of pixels are real numbers.
bool is_real(DType type) { return type == DType::float16 || type == DType::float32; }

/// Returns a text of a checkpoint's state; "" if it is missing or not a text.
std::string state_text(const checkpoint::Info& info, const char* key) {
  const auto found = info.state.find(key);
  const auto* text = found == info.state.end() ? nullptr : std::get_if<std::string>(&found->second);
  return text == nullptr ? std::string() : *text;
}

}  // namespace

std::vector<checkpoint::TensorSlice> slices_of(Replica& replica, Rows rows, bool slots) {
  const parallel::ParameterStore& store = replica.weight_update().store();
  const parallel::Mesh& mesh = replica.mesh();
  const auto& whole = replica.model().parameters().entries();
  std::vector<checkpoint::TensorSlice> pieces;
  // Adds a slice of one tensor; empty if this rank does not hold it.
  const auto add = [&](const std::string& group, const parallel::ParameterSpec& spec,
                       const Tensor& flat, bool counts_updates = false) {
    checkpoint::TensorSlice piece{.path = group + "/" + spec.name,
                                  .spec = &spec,
                                  .stream = replica.context().stream(),
                                  .counts_updates = counts_updates};
    const int index = store.list().find(spec.name);
    if (index >= 0 && (rows == Rows::owned ||
                       replica.stage_parameters().is_counted(static_cast<std::size_t>(index)))) {
      const parallel::TensorPartition& part =
          store.list().entries()[static_cast<std::size_t>(index)].partition;
      const parallel::ParameterShard::OwnedRows& owned = store.owned().owned_rows({index});
      piece.partition = &part;
      piece.row_begin = owned.row_begin;
      piece.row_end = owned.row_end;
      if (rows == Rows::share &&
          store.sharding().kind ==
              parallel::ShardKind::none) {  // Every replica holds all rows: each writes its share.
        piece.row_begin = part.rows() * mesh.coordinates.data_rank / mesh.shape.data;
        piece.row_end = part.rows() * (mesh.coordinates.data_rank + 1) / mesh.shape.data;
      }
      if (flat.data != nullptr)
        piece.data = flat.as<float>() + owned.offset +
                     (piece.row_begin - owned.row_begin) * part.row_elements();
    }
    pieces.push_back(std::move(piece));
  };
  for (const auto& entry : whole)
    add(entry.spec.role == parallel::Role::weight ? "model" : "buffers", entry.spec,
        store.flat_master());
  if (!slots) return pieces;
  for (const parallel::StateEntry& state : replica.weight_update().state())
    for (const auto& entry : whole)
      if (state.covers(entry.spec,
                       optim::is_frozen(replica.options().optimizer.groups, entry.spec)))
        add(state.group, entry.spec, state.flat, state.counts_updates);
  return pieces;
}

checkpoint::Info checkpoint_info(const RunState& state, Replica& replica, const std::string& deck,
                                 const data::LabelMeaning& meaning, std::uint64_t dataset,
                                 std::uint64_t seed) {
  const optim::Optimizer& optimizer = replica.weight_update().optimizer();
  const parallel::GradientReducer& reducer = replica.weight_update().reducer();
  checkpoint::Info info;
  info.step = state.step;
  info.epoch = state.cursor.epoch;
  info.epoch_samples = state.cursor.position;
  info.samples = state.samples;
  info.updates = optimizer.updates();
  info.updates_before = optimizer.updates_before();
  info.deck = deck;
  info.classes = meaning.classes;
  if (!meaning.tokenizer.empty()) info.state["tokenizer"] = meaning.tokenizer;
  if (!meaning.tokenizer_digest.empty()) info.state["tokenizer_digest"] = meaning.tokenizer_digest;
  if (meaning.end_of_text >= 0) info.state["end_of_text"] = meaning.end_of_text;
  if (const ReplicaOptions& options = replica.options(); !options.tokens()) {
    info.state["image_height"] = options.image[0];
    info.state["image_width"] = options.image[1];
    info.state["image_channels"] = options.image[2];
    info.state["pixel_bits"] = 8 * size_of(options.pixel_type);
    // No text: HDF5 1.14.2 crashes when it copies a group of many attributes with one.
    info.state["pixel_float"] = std::int64_t{is_real(options.pixel_type)};
    if (options.preparation != 0) info.state["preparation"] = options.preparation;
  }
  info.state["seed"] = seed;
  info.state["dataset"] = dataset;
  info.state["elapsed_s"] = state.elapsed_seconds;
  info.state["skipped"] = state.skipped;
  const optim::LossScale scale = optimizer.loss_scale();
  info.state["loss_scale"] = scale.scale;
  if (optimizer.scales_loss()) info.state["loss_scale_steps"] = scale.good_steps;
  if (const auto pending = reducer.pending(); pending.exists) {
    info.state["pending_finite"] = std::int64_t{pending.finite};
    info.state["pending_scale"] = pending.scale;
  }
  info.state["health_mean_sum"] = state.health.mean_sum;
  info.state["health_mean_sum_before"] = state.health.previous_mean_sum;
  for (const auto& [name, counter] : health_counters) info.state[name] = state.health.*counter;
  if (state.best) {
    info.state["best"] = *state.best;
    info.state["best_metric"] = state.best_metric;
    info.state["best_step"] = state.best_step;
  }
  if (state.owes_evaluation) info.state["owes_evaluation"] = std::int64_t{1};
  if (state.noise.measurements > 0) {
    info.state["noise_norm_sum"] = state.noise.norm_sum;
    info.state["noise_trace_sum"] = state.noise.trace_sum;
    info.state["noise_measurements"] = state.noise.measurements;
  }
  if (!state.plateau.metric.empty()) {
    info.state["plateau_metric"] = state.plateau.metric;
    if (state.plateau.best) info.state["plateau_best"] = *state.plateau.best;
    for (const auto& [name, counter] : plateau_counters) info.state[name] = state.plateau.*counter;
  }
  return info;
}

std::optional<std::uint64_t> dataset_of(const checkpoint::Info& info) {
  if (!info.state.contains("dataset")) return std::nullopt;
  // HDF5 returns the value as a signed integer if it fits.
  return value_or<std::uint64_t>(info, "dataset", 0);
}

void validate_preparation(const checkpoint::Info& info, const data::DatasetInfo& data,
                          const std::string& key, const std::string& path) {
  const std::uint64_t here = data::preparation_hash(data);
  if (here == 0 || !info.state.contains("preparation")) return;
  validate(value_or<std::uint64_t>(info, "preparation", 0) == here,
           "{}: its numbers were made with {}, but those of the training set of {} otherwise; use "
           "the same keys, or shards that were made with them",
           key, printable(data.preparation, 300), path);
}

data::LabelMeaning meaning_of(const checkpoint::Info& info, const std::string& path) {
  return {path, info.classes, state_text(info, "tokenizer"), state_text(info, "tokenizer_digest"),
          value_or<std::int64_t>(info, "end_of_text", -1)};
}

std::optional<TrainedImages> trained_images_of(const checkpoint::Info& info,
                                               const std::string& path) {
  constexpr const char* keys[] = {"image_height", "image_width", "image_channels", "pixel_bits"};
  const auto is_missing = [&](const char* key) { return !info.state.contains(key); };
  if (std::ranges::all_of(keys, is_missing)) return std::nullopt;
  const auto extent = [&](const char* key) {
    validate(!is_missing(key), "{}: its state has no {} beside the others of its images", path,
             key);
    constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
    const auto value = value_or<std::int64_t>(info, key, 0);
    validate(value >= 1 && value <= most,
             "{}: its state {} is {}, which no run can write: it must be from 1 to {}", path, key,
             value, most);
    return value;
  };
  TrainedImages images{{extent("image_height"), extent("image_width"), extent("image_channels")},
                       extent("pixel_bits"),
                       {}};
  if (!is_missing("pixel_float")) {
    const auto real = value_or<std::int64_t>(info, "pixel_float", -1);
    for (const DType type : {DType::uint8, DType::uint16, DType::float16, DType::float32})
      if (8 * size_of(type) == images.pixel_bits && std::int64_t{is_real(type)} == real)
        images.pixel_type = type;
    validate(images.pixel_type.has_value(),
             "{}: its state pixel_float is {} beside pixel_bits {}, which no run can write", path,
             real, images.pixel_bits);
  }
  return images;
}

void restore_pending(parallel::GradientReducer& reducer, const checkpoint::Info& info) {
  if (!reducer.delayed()) return;
  reducer.set_pending(
      {.exists = info.state.contains("pending_finite"),
       .finite = value_or<std::int64_t>(info, "pending_finite", 1) != 0,
       .scale = checked_scale(value_or<double>(info, "pending_scale", 1), "pending_scale")});
}

void restore_loss_scale(optim::Optimizer& optimizer, const checkpoint::Info& info) {
  if (!info.state.contains("loss_scale_steps")) return;
  const auto steps = value_or<std::int64_t>(info, "loss_scale_steps", 0);
  validate(steps >= 0, "the checkpoint's state loss_scale_steps is {}, which no run can write",
           steps);
  optimizer.set_loss_scale(
      {checked_scale(value_or<double>(info, "loss_scale", 1), "loss_scale"), steps});
}

RunState run_state_of(const checkpoint::Info& info) {
  RunState state;
  state.step = info.step;
  state.samples = info.samples;
  state.cursor = {info.epoch, info.epoch_samples};
  state.elapsed_seconds = value_or<double>(info, "elapsed_s", 0);
  validate(std::isfinite(state.elapsed_seconds) && state.elapsed_seconds >= 0,
           "the checkpoint's state elapsed_s is {}, which no run can write: it must be at least 0",
           state.elapsed_seconds);
  state.skipped = state_count(info, "skipped");
  state.health.mean_sum = value_or<double>(info, "health_mean_sum", 0);
  state.health.previous_mean_sum = value_or<double>(info, "health_mean_sum_before", 0);
  for (const auto& [name, counter] : health_counters)
    state.health.*counter = state_count(info, name);
  if (info.state.contains("best")) state.best = value_or<double>(info, "best", 0);
  state.best_metric = state_text(info, "best_metric");
  state.best_step = value_or<std::int64_t>(info, "best_step", 0);
  state.owes_evaluation = state_count(info, "owes_evaluation") > 0;
  state.noise = {.norm_sum = value_or<double>(info, "noise_norm_sum", 0),
                 .trace_sum = value_or<double>(info, "noise_trace_sum", 0),
                 .measurements = state_count(info, "noise_measurements")};
  state.plateau.metric = state_text(info, "plateau_metric");
  if (info.state.contains("plateau_best"))
    state.plateau.best = value_or<double>(info, "plateau_best", 0);
  for (const auto& [name, counter] : plateau_counters)
    state.plateau.*counter = state_count(info, name);
  state.meaning = meaning_of(info, "");
  return state;
}

}  // namespace trireme::train
