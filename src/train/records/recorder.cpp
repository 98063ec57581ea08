// SPDX-License-Identifier: Apache-2.0
//
// Writes metrics.jsonl, TensorBoard files, the progress line and log lines on world rank 0.
//
// step() adds to a window of mean times; train_row() writes the window and starts a new one. If the
// disk refuses rows, they wait in memory; write_remaining() tries them again at the end of the run.
// Files that were removed are opened anew, at the next checkpoint at the latest.
#include "recorder.hpp"

#include <algorithm>
#include <cmath>

#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

/// Time between two looks for removed files at rows of kind train. Each checkpoint looks too.
constexpr double reopening_seconds = 1;

}  // namespace

Recorder::Recorder(const Options& options, Log& log)
    : options_(options),
      log_(log),
      progress_(log, options.is_recorder, options.every_steps),
      epochs_(options.epoch, options.decode),
      comparison_({.prediction = options.prediction,
                   .flops_per_rank = options.flops_per_rank,
                   .host_computes = in_host_memory(options.device.kind)}) {
  if (!options.is_recorder) return;
  const monitor::RunFolder folder(options.run_folder);
  metrics_ = monitor::Metrics(folder.metrics());
  if (options.tensorboard) tensorboard_ = monitor::TensorBoard(folder / io::run_names::tensorboard);
  if (options.fresh)
    event({}, "start", "a fresh start");  // Rows before this one belong to an earlier run.
}

double Recorder::epoch_of(const RunState& state) const {
  return static_cast<double>(state.cursor.epoch) +
         static_cast<double>(state.cursor.position) /
             static_cast<double>(options_.scale.samples_per_epoch);
}

std::optional<double> Recorder::mfu(double step_seconds) const {
  const double peak = options_.prediction.peak_flops;
  if (options_.flops_per_rank == 0 || peak == 0) return std::nullopt;
  return flops_per_s(step_seconds) / peak;
}

void Recorder::write_scalar(const std::string& tag, const RunState& state, double value) {
  if (may_write()) tensorboard_.write_scalar(tag, state.step, value);
}

void Recorder::reopen_removed_files(const RunState& state) {
  files_seen_at_ = monotonic_seconds();
  if (!may_write()) return;
  std::vector<std::string> reopened;
  std::string failure;
  // One file that cannot be opened does not keep the others closed.
  const auto reopen = [&](auto& file, const std::string& name) {
    try {
      if (file.reopen_if_removed()) reopened.push_back(name);
    } catch (const std::exception& error) {
      failure = error.what();
    }
  };
  reopen(metrics_, io::run_names::metrics);
  reopen(log_, io::run_names::log);
  reopen(tensorboard_, std::string("the event file of ") + io::run_names::tensorboard + "/");
  if (!failure.empty() && !reopening_failed_)
    log_.warn("a file of the run was removed and cannot be opened anew: {}", failure);
  reopening_failed_ = !failure.empty();
  for (const std::string& name : reopened) {
    const std::string detail = fmt::format(
        "{} was removed or replaced while the run goes on: it is opened anew, and what was written "
        "into the old file since then is lost",
        name);
    log_.warn("{}", detail);
    event(state, "file_reopened", detail);
  }
}

/// Writes a row, and logs when writing starts or stops to fail.
void Recorder::write(monitor::MetricsRow& row, const RunState& state) {
  if (!may_write()) return;
  row.add("elapsed_s", state.elapsed_seconds);
  metrics_.write(row);
  const std::string trouble = metrics_.write_error();
  if (!trouble.empty() && !rows_are_waiting_)
    log_.warn("{}; training continues, rows are kept in memory until they can be written", trouble);
  if (trouble.empty() && rows_are_waiting_) log_.info("all rows of metrics are written");
  rows_are_waiting_ = !trouble.empty();
  if (options_.prometheus == nullptr) return;
  options_.prometheus->add(row);
  log_prometheus_trouble();
}

void Recorder::log_prometheus_trouble() {
  const std::string& reason = options_.prometheus->trouble();
  if (reason.empty() != prometheus_failed_) return;
  prometheus_failed_ = !reason.empty();
  if (prometheus_failed_) log_.warn("monitor.prometheus: {}; training continues", reason);
}

void Recorder::write_remaining(const RunState& state) {
  if (!options_.is_recorder || !may_write()) return;
  reopen_removed_files(state);
  metrics_.retry();
  const std::string trouble = metrics_.write_error();
  ensure(trouble.empty(), "{}: the last rows of metrics are lost", trouble);
}

void Recorder::step(const RunState& state, const StepResult& result) {
  if (!options_.is_recorder) return;
  window_ += result.times;
  comparison_.add_step(result.times);
  if (result.has_labels) window_hits_.add(result.top1);
  window_skipped_ += result.applied ? 0 : 1;
  ++window_steps_;
  smoothed_step_seconds_ = smoothed_step_seconds_ == 0
                               ? result.times.total
                               : 0.95 * smoothed_step_seconds_ + 0.05 * result.times.total;

  monitor::Progress::State shown;
  shown.step = state.step;
  shown.total_steps = options_.total_steps;
  shown.epoch = epoch_of(state);
  const std::int64_t total_samples = options_.scale.samples_after(options_.total_steps);
  shown.total_epochs =
      static_cast<double>(total_samples) / static_cast<double>(options_.scale.samples_per_epoch);
  shown.loss = result.loss;
  const bool has_hits = options_.answer->hit_metric != nullptr && window_hits_.count > 0;
  if (has_hits) shown.accuracy = window_hits_.mean();
  shown.tokens = options_.scale.tokens_per_sample > 0;
  const auto samples_per_step = static_cast<double>(options_.scale.samples_per_step);
  const std::int64_t labels_per_sample =
      std::max<std::int64_t>(1, options_.scale.tokens_per_sample);
  shown.per_second =
      samples_per_step * static_cast<double>(labels_per_sample) / smoothed_step_seconds_;
  const auto samples_left =
      static_cast<double>(total_samples - options_.scale.samples_after(state.step));
  if (options_.total_steps > 0)
    shown.seconds_left = samples_left / samples_per_step * smoothed_step_seconds_;
  shown.flops_per_s = flops_per_s(smoothed_step_seconds_);
  shown.mfu = mfu(smoothed_step_seconds_).value_or(-1);
  progress_.show(shown);

  log_epochs(epochs_.add(state.cursor, result.times));
}

void Recorder::log_epochs(const std::string& line) {
  if (line.empty()) return;
  progress_.clear();
  log_.info("{}", line);
}

void Recorder::begin_epoch(std::int64_t epoch) { epochs_ = EpochSummary(epoch, options_.decode); }

void Recorder::finish() {
  if (!options_.is_recorder) return;
  progress_.clear();
  log_epochs(epochs_.rest());
}

void Recorder::compare_prediction() {
  if (!options_.is_recorder) return;
  for (const std::string& line : comparison_.lines()) log_.info("{}", line);
}

void Recorder::set_rank_figures(const RankFigures& figures, const std::vector<std::string>& hosts) {
  if (!options_.is_recorder) return;
  figures_ = figures;
  if (hosts_.empty()) hosts_ = hosts;
  const MemoryInUse& memory = figures.memory;
  const auto has_grown = [](std::int64_t now, std::int64_t logged) {
    constexpr double logged_growth = 1.1;
    return static_cast<double>(now) > logged_growth * static_cast<double>(logged);
  };
  if (!has_grown(memory.host_bytes, logged_memory_.host_bytes) &&
      !has_grown(memory.device_bytes.value_or(0), logged_memory_.device_bytes.value_or(0)))
    return;
  logged_memory_ = memory;
  progress_.clear();
  log_.info("memory in use, largest rank: {}host {}; planned {}",
            memory.device_bytes ? "device " + format_bytes(*memory.device_bytes) + ", " : "",
            format_bytes(memory.host_bytes), format_bytes(options_.memory_bytes));
}

void Recorder::add_rank_figures(monitor::MetricsRow& row) const {
  if (!figures_) return;
  const auto host = [&](int rank) { return hosts_[static_cast<std::size_t>(rank)]; };
  const auto add = [&](const std::string& name, const Spread& spread, bool names_min) {
    if (spread.count == 0) return;
    row.add(name + "_min", spread.min)
        .add(name + "_mean", spread.mean)
        .add(name + "_max", spread.max)
        .add(name + (names_min ? "_min_host" : "_max_host"),
             host(names_min ? spread.rank_of_min : spread.rank_of_max));
  };
  const auto add_known = [&](const char* name, double value) {
    if (!std::isnan(value)) row.add(name, value);
  };
  add_known("gpu_util", figures_->rank_0.gpu_percent);
  add_known("gpu_temp_c", figures_->rank_0.gpu_celsius);
  add_known("gpu_power_w", figures_->rank_0.gpu_watts);
  add_known("gpu_clock_mhz", figures_->rank_0.gpu_megahertz);
  add("cpu_util", figures_->cpu_percent, true);
  add("gpu_util", figures_->gpu_percent, true);
  add("gpu_temp_c", figures_->gpu_celsius, false);
  add("gpu_power_w", figures_->gpu_watts, false);
  add("gpu_clock_mhz", figures_->gpu_megahertz, true);
  if (const Spread& throttled = figures_->throttled; throttled.count > 0) {
    row.add("gpus_throttled",
            static_cast<std::int64_t>(std::lround(throttled.mean * throttled.count)));
    if (throttled.max > 0) row.add("gpus_throttled_host", host(throttled.rank_of_max));
  }
}

void Recorder::train_row(const RunState& state, const StepResult& result,
                         const optim::StepRates& rates) {
  if (!options_.is_recorder) return;
  if (monotonic_seconds() - files_seen_at_ > reopening_seconds) reopen_removed_files(state);
  const double steps = static_cast<double>(std::max<std::int64_t>(1, window_steps_));
  const double step_seconds = window_.total / steps;
  const double samples_per_second =
      static_cast<double>(options_.scale.samples_per_step) / step_seconds;
  const double tokens_per_second =
      samples_per_second * static_cast<double>(options_.scale.tokens_per_sample);
  monitor::MetricsRow row("train");
  row.add("step", state.step).add("epoch", epoch_of(state)).add("samples", state.samples);
  row.add("loss", result.loss)
      .add("rate", rates.learning_rate)
      .add("grad_norm", result.grad_norm)
      .add("loss_scale", result.loss_scale);
  row.add("samples_per_s", samples_per_second);
  if (options_.scale.tokens_per_sample > 0) row.add("tokens_per_s", tokens_per_second);
  row.add("step_s", step_seconds);
  row.add("data_s", window_.data / steps)
      .add("read_s", (window_.readers.read + window_.readers.verify) / steps)
      .add("decode_s", window_.readers.decode / steps)
      .add("augment_s", window_.readers.augment / steps)
      .add("transfer_s", window_.transfer / steps)
      .add("forward_s", window_.forward / steps)
      .add("backward_s", window_.backward / steps);
  row.add("comm_exposed_s", window_.comm_exposed / steps)
      .add("optimizer_s", window_.optimizer / steps);
  row.add("memory_bytes", options_.memory_bytes);
  if (figures_) {
    const MemoryInUse& memory = figures_->memory;
    if (memory.device_bytes) row.add("memory_device_bytes", *memory.device_bytes);
    row.add("memory_host_bytes", memory.host_bytes);
  }
  row.add("skipped", window_skipped_);
  if (options_.answer->hit_metric != nullptr && window_hits_.count > 0)
    row.add(options_.answer->hit_metric, window_hits_.mean());
  if (rates.momentum) row.add("momentum", *rates.momentum);
  const double tflops = flops_per_s(step_seconds) / 1e12;
  const std::optional<double> utilization = mfu(step_seconds);
  if (options_.flops_per_rank > 0) row.add("tflops_per_rank", tflops);
  if (utilization) row.add("mfu", *utilization);
  add_rank_figures(row);
  write(row, state);
  if (!std::isfinite(result.loss) && result.has_labels)
    event(state, "nonfinite", "loss is not finite");
  write_scalar("train/loss", state, result.loss);
  write_scalar("train/rate", state, rates.learning_rate);
  if (rates.momentum) write_scalar("train/momentum", state, *rates.momentum);
  write_scalar("train/grad_norm", state, result.grad_norm);
  write_scalar("train/samples_per_s", state, samples_per_second);
  if (options_.scale.tokens_per_sample > 0)
    write_scalar("train/tokens_per_s", state, tokens_per_second);
  if (options_.flops_per_rank > 0) write_scalar("train/tflops_per_rank", state, tflops);
  if (utilization) write_scalar("train/mfu", state, *utilization);
  for (const char* const key :
       {"step_s", "data_s", "forward_s", "backward_s", "comm_exposed_s", "optimizer_s"})
    write_scalar(std::string("step/") + key, state, *row.number(key));
  for (const char* const key :
       {"memory_device_bytes", "memory_host_bytes", "cpu_util_mean", "gpu_util_mean",
        "gpu_temp_c_max", "gpu_power_w_mean", "gpu_clock_mhz_min"})
    if (const auto value = row.number(key))
      write_scalar(std::string("machine/") + key, state, *value);
  window_ = {};
  window_steps_ = window_skipped_ = 0;
  window_hits_ = {};
}

void Recorder::noise_scale(const RunState& state, const NoiseScale& noise,
                           std::int64_t small_batch) {
  if (!options_.is_recorder) return;
  monitor::MetricsRow row("noise");
  row.add("step", state.step)
      .add("epoch", epoch_of(state))
      .add("noise_scale", noise.samples)
      .add("gradient_norm_squared", noise.gradient_norm_squared)
      .add("trace", noise.trace)
      .add("small_batch", small_batch)
      .add("large_batch", options_.scale.samples_per_step)
      .add("measurements", state.noise.measurements);
  write(row, state);
  const bool known = std::isfinite(noise.samples);
  if (known) write_scalar("noise/noise_scale", state, noise.samples);
  write_scalar("noise/gradient_norm_squared", state, noise.gradient_norm_squared);
  write_scalar("noise/trace", state, noise.trace);
  progress_.clear();
  log_.info("step {}: gradient noise scale {} (a step has {})", state.step,
            known ? fmt::format("{:.4g} samples", noise.samples)
                  : std::string("unknown: the noise hides the gradient"),
            options_.scale.samples_per_step);
}

void Recorder::tensors(const RunState& state, const std::vector<TensorRecord>& records) {
  if (!options_.is_recorder) return;
  for (const TensorRecord& record : records) {
    monitor::MetricsRow row("tensors");
    row.add("step", state.step)
        .add("tensor", record.name)
        .add("weight_norm", record.weight_norm)
        .add("gradient_norm", record.gradient_norm)
        .add("update_ratio", record.update_ratio);
    if (record.trust_ratio) row.add("trust_ratio", *record.trust_ratio);
    write(row, state);
    const std::string tag = "tensors/" + record.name;
    write_scalar(tag + "/weight_norm", state, record.weight_norm);
    write_scalar(tag + "/gradient_norm", state, record.gradient_norm);
    if (std::isfinite(record.update_ratio))
      write_scalar(tag + "/update_ratio", state, record.update_ratio);
    if (record.trust_ratio) write_scalar(tag + "/trust_ratio", state, *record.trust_ratio);
  }
}

void Recorder::evaluation(const RunState& state, const std::string& split, const Metrics& metrics,
                          double seconds) {
  if (!options_.is_recorder) return;
  comparison_.add_evaluation(seconds);
  const std::int64_t samples = metrics.num_samples;
  monitor::MetricsRow row("evaluate");
  row.add("step", state.step)
      .add("epoch", epoch_of(state))
      .add("split", split)
      .add("samples", samples);
  if (options_.answer->is_map) row.add("counted", metrics.counted);
  row.add("loss", metrics.loss);
  write_scalar(split + "/loss", state, metrics.loss);
  for (const std::string_view word : options_.answer->metrics) {
    const std::string key(word);
    const double value = metrics.value_of(word);
    row.add(key, value);
    if (metrics.scores) add_parts(row, key, *metrics.scores);
    if (std::isfinite(value)) write_scalar(split + "/" + key, state, value);
  }
  if (options_.averages) row.add("weights", "ema");
  write(row, state);
  progress_.clear();
  log_.info("{}{} at step {} (epoch {:.2f}): loss {}, {}", split,
            options_.averages ? " of the averaged weights" : "", state.step, epoch_of(state),
            std::isnan(metrics.loss) ? "-" : fmt::format("{:.4f}", metrics.loss),
            describe(metrics, *options_.answer));
  account(state, false);
}

/// Adds a metric of each part to the row of an evaluation, if there are several.
void Recorder::add_parts(monitor::MetricsRow& row, const std::string& metric,
                         const Scores& scores) {
  // Rows of metrics have a limited length.
  constexpr std::size_t max_listed_parts = 100;
  if (const auto parts = scores.each.size(); parts < 2 || parts > max_listed_parts) return;
  row.add(metric + "_of", scores.values_of(metric));
}

void Recorder::checkpoint(const RunState& state, const std::string& path, std::int64_t bytes,
                          double stall_seconds, double copy_seconds, double seconds) {
  if (!options_.is_recorder) return;
  comparison_.add_checkpoint(seconds);
  reopen_removed_files(state);
  monitor::MetricsRow row("checkpoint");
  row.add("step", state.step)
      .add("path", path)
      .add("bytes", bytes)
      .add("stall_s", stall_seconds)
      .add("copy_s", copy_seconds)
      .add("write_s", seconds);
  write(row, state);
  progress_.clear();
  log_.info("checkpoint {} ({}, {:.2f} s, steps waited {:.2f} s)", path, format_bytes(bytes),
            seconds, stall_seconds);
  account(state, false);
}

void Recorder::account(const RunState& state, bool ended) {
  if (!options_.is_recorder || options_.account == nullptr) return;
  const StartFacts& start = options_.start;
  monitor::MetricsRow row("account");
  row.add("step", state.step).add("launched", options_.account->launched());
  if (!start.job.empty()) row.add("job", start.job);
  if (start.job_start.submitted) row.add("job_submitted", *start.job_start.submitted);
  if (start.job_start.started) row.add("job_started", *start.job_start.started);
  if (start.previous)
    row.add("previous_start", start.previous->start).add("previous_end", start.previous->end);
  if (start.previous_job)
    row.add("previous_job", start.previous_job->job)
        .add("previous_job_energy_j", start.previous_job->joules);
  row.add("nodes", start.nodes).add("elapsed_at_launch", start.elapsed_at_launch);
  if (start.time_limit) row.add("time_limit", *start.time_limit);
  if (figures_) {
    const Spread &gpus = figures_->gpu_joules, &nodes = figures_->host_joules;
    if (gpus.count > 0)
      row.add("gpu_energy_j", gpus.mean * gpus.count)
          .add("gpu_energy_gpus", static_cast<std::int64_t>(gpus.count));
    if (nodes.count > 0)
      row.add("host_energy_j", nodes.mean * nodes.count)
          .add("host_energy_hosts", static_cast<std::int64_t>(nodes.count))
          .add("host_energy_source", to_string(figures_->host_source))
          .add("host_energy_scope", start.has_whole_nodes ? "exclusive" : "shared");
  }
  const monitor::StartSeconds seconds = options_.account->seconds();
  for (std::size_t part = 0; part < seconds.size(); ++part)
    row.add(monitor::key_of(static_cast<monitor::StartPart>(part)), seconds[part]);
  row.add("ended", ended);
  write(row, state);
  if (!ended) return;
  // Without the lease the file may be that of another job.
  if (options_.prometheus != nullptr && may_write()) {
    options_.prometheus->end();
    log_prometheus_trouble();
  }
  progress_.clear();
  log_.info("this start took {}: {}", format_short_seconds(options_.account->total()),
            monitor::describe_parts(seconds));
}

void Recorder::event(const RunState& state, const std::string& event, const std::string& detail) {
  if (!options_.is_recorder) return;
  monitor::MetricsRow row("event");
  row.add("step", state.step).add("event", event).add("detail", detail);
  write(row, state);
}

}  // namespace trireme::train
