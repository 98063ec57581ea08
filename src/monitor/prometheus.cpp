// SPDX-License-Identifier: Apache-2.0
//
// The file of monitor.prometheus: the latest figures of a run in Prometheus's text format.
//
// One table says which member of which row of metrics.jsonl becomes which metric, in base units.
// The recorder hands over each row that it writes; once a second the file is written anew.
// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
#include "trireme/monitor/prometheus.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/io/file.hpp"

namespace trireme::monitor {
namespace {

constexpr double seconds_between_writes = 1;

/// The way in which a row changes a metric.
enum class Use : std::uint8_t {
  set,     ///< a gauge
  total,   ///< a counter whose value the row has
  growth,  ///< a counter of the growth between rows: a rollback does not decrease it
  add,     ///< a counter to which the value is added
  count    ///< a counter of rows
};

/// A metric, and the member of the rows of a kind from which it comes.
struct Metric {
  const char *name, *help, *kind, *key;
  Use use = Use::set;
  double scale = 1;  ///< from the unit of the row to the base unit
  /// Label by which rows or members are told apart: its name, and the member of the row with its
  /// value, or the value in quotes.
  const char *label = nullptr, *label_value = nullptr;
};

constexpr double percent = 0.01, mega = 1e6, tera = 1e12;
/// Metrics of one name are neighbors.
constexpr std::array metrics{
    Metric{"trireme_step", "Finished steps", "train", "step"},
    Metric{"trireme_steps_total", "Steps of this start since its first row", "train", "step",
           Use::growth},
    Metric{"trireme_samples_total", "Samples of this start since its first row", "train", "samples",
           Use::growth},
    Metric{"trireme_skipped_steps_total", "Steps that were not applied", "train", "skipped",
           Use::add},
    Metric{"trireme_elapsed_seconds", "Time of all starts of the run", "train", "elapsed_s"},
    Metric{"trireme_epoch", "Finished epochs", "train", "epoch"},
    Metric{"trireme_loss", "Mean loss of the latest step", "train", "loss"},
    Metric{"trireme_learning_rate", "Learning rate", "train", "rate"},
    Metric{"trireme_gradient_norm", "2-norm of the gradient", "train", "grad_norm"},
    Metric{"trireme_loss_scale", "Loss scale", "train", "loss_scale"},
    Metric{"trireme_top1_ratio", "Right answers of the latest steps", "train", "top1"},
    Metric{"trireme_accuracy_ratio", "Right pixels of the latest steps", "train", "accuracy"},
    Metric{"trireme_samples_per_second", "Samples a second", "train", "samples_per_s"},
    Metric{"trireme_tokens_per_second", "Tokens a second", "train", "tokens_per_s"},
    Metric{"trireme_step_seconds", "Mean time of a step", "train", "step_s"},
    Metric{"trireme_step_part_seconds", "Mean time of a part of a step on rank 0", "train",
           "data_s", Use::set, 1, "part", "\"data\""},
    Metric{"trireme_step_part_seconds", "", "train", "forward_s", Use::set, 1, "part",
           "\"forward\""},
    Metric{"trireme_step_part_seconds", "", "train", "backward_s", Use::set, 1, "part",
           "\"backward\""},
    Metric{"trireme_step_part_seconds", "", "train", "comm_exposed_s", Use::set, 1, "part",
           "\"communication\""},
    Metric{"trireme_step_part_seconds", "", "train", "optimizer_s", Use::set, 1, "part",
           "\"update\""},
    Metric{"trireme_flops_per_second", "Model FLOPs a second, mean over the ranks", "train",
           "tflops_per_rank", Use::set, tera},
    Metric{"trireme_mfu_ratio", "Model FLOPs utilization", "train", "mfu"},
    Metric{"trireme_planned_memory_bytes", "Planned device memory of rank 0", "train",
           "memory_bytes"},
    Metric{"trireme_device_memory_bytes", "Device memory in use, fullest rank", "train",
           "memory_device_bytes"},
    Metric{"trireme_host_memory_bytes", "Host memory in use, fullest rank", "train",
           "memory_host_bytes"},
    Metric{"trireme_gpu_utilization_ratio", "Utilization of rank 0's GPU", "train", "gpu_util",
           Use::set, percent},
    Metric{"trireme_gpu_temperature_celsius", "Temperature of rank 0's GPU", "train", "gpu_temp_c"},
    Metric{"trireme_gpu_power_watts", "Power of rank 0's GPU", "train", "gpu_power_w"},
    Metric{"trireme_gpu_clock_hertz", "Clock of rank 0's GPU", "train", "gpu_clock_mhz", Use::set,
           mega},
    Metric{"trireme_cpu_utilization_ratio", "Utilization of the cores of a rank", "train",
           "cpu_util_min", Use::set, percent, "statistic", "\"min\""},
    Metric{"trireme_cpu_utilization_ratio", "", "train", "cpu_util_mean", Use::set, percent,
           "statistic", "\"mean\""},
    Metric{"trireme_cpu_utilization_ratio", "", "train", "cpu_util_max", Use::set, percent,
           "statistic", "\"max\""},
    Metric{"trireme_gpus_utilization_ratio", "Utilization of the GPUs", "train", "gpu_util_min",
           Use::set, percent, "statistic", "\"min\""},
    Metric{"trireme_gpus_utilization_ratio", "", "train", "gpu_util_mean", Use::set, percent,
           "statistic", "\"mean\""},
    Metric{"trireme_gpus_utilization_ratio", "", "train", "gpu_util_max", Use::set, percent,
           "statistic", "\"max\""},
    Metric{"trireme_gpus_temperature_celsius", "Temperature of the GPUs", "train", "gpu_temp_c_min",
           Use::set, 1, "statistic", "\"min\""},
    Metric{"trireme_gpus_temperature_celsius", "", "train", "gpu_temp_c_mean", Use::set, 1,
           "statistic", "\"mean\""},
    Metric{"trireme_gpus_temperature_celsius", "", "train", "gpu_temp_c_max", Use::set, 1,
           "statistic", "\"max\""},
    Metric{"trireme_gpus_power_watts", "Power of the GPUs", "train", "gpu_power_w_min", Use::set, 1,
           "statistic", "\"min\""},
    Metric{"trireme_gpus_power_watts", "", "train", "gpu_power_w_mean", Use::set, 1, "statistic",
           "\"mean\""},
    Metric{"trireme_gpus_power_watts", "", "train", "gpu_power_w_max", Use::set, 1, "statistic",
           "\"max\""},
    Metric{"trireme_gpus_clock_hertz", "Clock of the GPUs", "train", "gpu_clock_mhz_min", Use::set,
           mega, "statistic", "\"min\""},
    Metric{"trireme_gpus_clock_hertz", "", "train", "gpu_clock_mhz_mean", Use::set, mega,
           "statistic", "\"mean\""},
    Metric{"trireme_gpus_clock_hertz", "", "train", "gpu_clock_mhz_max", Use::set, mega,
           "statistic", "\"max\""},
    Metric{"trireme_gpus_throttled", "Ranks whose GPU lowers its clocks", "train",
           "gpus_throttled"},
    Metric{"trireme_evaluation_loss", "Loss of the latest evaluation", "evaluate", "loss", Use::set,
           1, "split", "split"},
    Metric{"trireme_evaluation_top1_ratio", "Right answers of the latest evaluation", "evaluate",
           "top1", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_top5_ratio", "Right answers among the five most probable",
           "evaluate", "top5", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_perplexity", "Perplexity of the latest evaluation", "evaluate",
           "perplexity", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_rmse", "Root of the mean squared error, in units of the data",
           "evaluate", "rmse", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_mae", "Mean absolute error, in units of the data", "evaluate", "mae",
           Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_r2_ratio", "Coefficient of determination", "evaluate", "r2",
           Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_f1_ratio", "Mean F1 of the classes", "evaluate", "f1", Use::set, 1,
           "split", "split"},
    Metric{"trireme_evaluation_precision_ratio", "Mean precision of the classes", "evaluate",
           "precision", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_recall_ratio", "Mean recall of the classes", "evaluate", "recall",
           Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_iou_ratio", "Mean intersection over union of the classes",
           "evaluate", "iou", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_accuracy_ratio", "Right pixels of the latest evaluation", "evaluate",
           "accuracy", Use::set, 1, "split", "split"},
    Metric{"trireme_evaluation_step", "Step of the latest evaluation", "evaluate", "step", Use::set,
           1, "split", "split"},
    Metric{"trireme_noise_scale_samples", "Gradient noise scale", "noise", "noise_scale"},
    Metric{"trireme_checkpoints_total", "Checkpoints of this start", "checkpoint", "step",
           Use::count},
    Metric{"trireme_checkpoint_step", "Step of the latest checkpoint", "checkpoint", "step"},
    Metric{"trireme_checkpoint_size_bytes", "Size of the latest checkpoint", "checkpoint", "bytes"},
    Metric{"trireme_checkpoint_stall_seconds_total", "Time that steps waited for checkpoints",
           "checkpoint", "stall_s", Use::add},
    Metric{"trireme_gpu_energy_joules_total", "Energy of the GPUs since training began", "account",
           "gpu_energy_j", Use::total},
    Metric{"trireme_host_energy_joules_total", "Energy of the hosts since training began",
           "account", "host_energy_j", Use::total},
    Metric{"trireme_events_total", "Events of this start", "event", "step", Use::count, 1, "event",
           "event"}};

constexpr std::string_view events_name = "trireme_events_total";
/// The events of docs/reference/metrics.md.
constexpr std::array known_events{"start",         "restart",          "batch",
                                  "stopped",       "skipped_step",     "loss_spike",
                                  "grad_norm",     "nonfinite",        "rollback",
                                  "rate_jump",     "rate_reduced",     "diverged",
                                  "slow_rank",     "replicas_differ",  "rank_lost",
                                  "file_reopened", "folder_recreated", "checkpoint_failed"};

/// Returns the value of a label: in quotes, with what the format asks to escape.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : printable(text)) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

std::string sample(const char* name, const std::string& labels, double value) {
  return fmt::format("{}{{{}}} {}\n", name, labels, value);
}

std::string head(const char* name, const char* help, bool is_counter) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help,
                     is_counter ? "counter" : "gauge");
}

// The first bytes of a file, by which it is recognized.
constexpr const char* up_name = "trireme_up";
constexpr std::string_view file_start = "# HELP trireme_up ";

}  // namespace

Prometheus::Prometheus(std::string path, const std::string& run, const std::string& job)
    : path_(std::move(path)),
      temporary_(path_ + io::unique_suffix()),
      labels_("run=" + quoted(run) + (job.empty() ? "" : ",batch_job=" + quoted(job))),
      values_(metrics.size()),
      last_(metrics.size()) {
  // An event that is first seen at 1 would not be an increase.
  for (std::size_t i = 0; i < metrics.size(); ++i)
    if (std::string_view(metrics[i].name) == events_name)
      for (const char* const event : known_events) values_[i]["event=" + quoted(event)] = 0;
  write(true);
}

void Prometheus::set(std::size_t metric, const std::string& label, double value) {
  constexpr std::size_t max_labels = 100;
  auto& values = values_[metric];
  if (values.size() == max_labels && !values.contains(label)) return;
  double& kept = values[label];
  switch (metrics[metric].use) {
    case Use::growth:
      kept += std::max(0.0, value - last_[metric].value_or(value));
      last_[metric] = value;
      break;
    case Use::add: kept += value; break;
    case Use::count: ++kept; break;
    case Use::total: kept = std::max(kept, value); break;
    case Use::set: kept = value;
  }
}

void Prometheus::add(const MetricsRow& row, double now) {
  if (path_.empty()) return;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const Metric& metric = metrics[i];
    if (row.kind() != metric.kind) continue;
    std::string label;
    const bool is_text = metric.label != nullptr && *metric.label_value != '"';
    if (metric.label != nullptr)
      label = fmt::format("{}={}", metric.label,
                          is_text ? quoted(row.text(metric.label_value)) : metric.label_value);
    const std::optional<double> value = row.number(metric.key);
    if (value)
      set(i, label, metric.scale * *value);
    else if (metric.use == Use::set)
      values_[i].erase(label);  // The run no longer has it.
  }
  if (now - written_at_ >= seconds_between_writes) write(true);
}

void Prometheus::end() {
  if (path_.empty()) return;
  write(false);
  path_.clear();
}

void Prometheus::write(bool is_up) {
  written_at_ = monotonic_seconds();
  std::string text = head(up_name, "1 while a start of the run goes on", false) +
                     sample(up_name, labels_, is_up ? 1 : 0);
  constexpr const char* updated = "trireme_updated_timestamp_seconds";
  text += head(updated, "Time when this file was written", false) +
          sample(updated, labels_, std::floor(wall_seconds()));
  std::string_view last;
  for (std::size_t i = 0; i < metrics.size(); ++i) {
    const Metric& metric = metrics[i];
    if (values_[i].empty()) continue;
    if (metric.name != last) {
      // The first metric of a name has its help, also if that one has no value.
      std::size_t first = i;
      while (*metrics[first].help == '\0') --first;
      text += head(metric.name, metrics[first].help, metric.use != Use::set);
    }
    last = metric.name;
    for (const auto& [label, value] : values_[i])
      text += sample(metric.name, label.empty() ? labels_ : labels_ + "," + label, value);
  }
  // Without fsync, which may take longer than a step.
  trouble_.clear();
  try {
    io::File file(temporary_, io::File::Mode::create_new);
    file.write_at(0, text.data(), std::ssize(text));
    file.close();
    std::filesystem::rename(temporary_, path_);
  } catch (const std::exception& error) {
    trouble_ = error.what();
    std::error_code ignored;
    std::filesystem::remove(temporary_, ignored);
  }
}

void Prometheus::validate(const std::string& path) {
  using trireme::validate;
  const std::string key = fmt::format("monitor.prometheus = \"{}\"", printable(path));
  const std::filesystem::path folder = std::filesystem::absolute(path).parent_path();
  std::error_code error;
  validate(std::filesystem::is_directory(folder, error),
           "{}: there is no folder {} on this host; make it, or name a file in another one", key,
           folder.string());
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
  if (std::filesystem::exists(status)) {
    // Empty after a loss of power.
    const bool is_ours =
        std::filesystem::is_regular_file(status) &&
        (std::filesystem::file_size(path, error) == 0 || io::begins_with(path, file_start));
    validate(is_ours, "{}: exists and is no file of this kind, so it is not replaced; name another",
             key);
  }
  try {
    const io::StagedFile staged(path, io::unique_suffix());
    const io::File file(staged.temporary(), io::File::Mode::create);
  } catch (const Error& error_of_file) {
    throw InputError(
        fmt::format("{}: no file can be made there ({}); permit writing, or name a "
                    "file in another folder",
                    key, error_of_file.what()));
  }
}

}  // namespace trireme::monitor
