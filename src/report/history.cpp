// SPDX-License-Identifier: Apache-2.0
//
// Reads the rows of metrics.jsonl for a report: curves, events, times of steps, norms of tensors.
//
// Called by run_record.cpp for each row, in the order of the file. A fresh start begins anew: rows
// before it belong to another run. Everybody can write rows, so their kinds, names and numbers are
// bounded.
#include "trireme/report/history.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/answer.hpp"
#include "trireme/base/text.hpp"

namespace trireme::report {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

/// The numbers of rows of kind train that have curves.
constexpr std::array train_names{"loss",
                                 "rate",
                                 "grad_norm",
                                 "loss_scale",
                                 "momentum",
                                 "top1",
                                 "accuracy",
                                 "samples_per_s",
                                 "tokens_per_s",
                                 "step_s",
                                 "data_s",
                                 "forward_s",
                                 "backward_s",
                                 "optimizer_s",
                                 "comm_exposed_s",
                                 "tflops_per_rank",
                                 "mfu",
                                 "memory_bytes",
                                 "gpu_util",
                                 "memory_device_bytes",
                                 "memory_host_bytes",
                                 "gpu_temp_c",
                                 "gpu_power_w",
                                 "gpu_clock_mhz",
                                 "cpu_util_mean",
                                 "gpu_util_mean",
                                 "gpu_temp_c_max",
                                 "gpu_power_w_mean",
                                 "gpu_clock_mhz_min"};

constexpr std::size_t max_evaluated_sets = 8, max_marks = 50, max_event_kinds = 64;

/// Returns a member as a finite number, however large: a loss may be.
double value_of(const monitor::MetricsReader& row, const char* key) {
  const auto& member = row[key];
  return member.is_number() ? member.get<double>() : none;
}

std::string text_of(const monitor::MetricsReader& row, const char* key, std::size_t max_bytes) {
  const auto& member = row[key];
  return member.is_string() ? printable(member.get_ref<const std::string&>(), max_bytes) : "";
}

History empty_history(std::size_t max_buckets) {
  std::vector<std::string> names(train_names.begin(), train_names.end());
  names.emplace_back("batch");
  return {.train = Track(std::move(names), max_buckets),
          .noise = Track({"noise_scale"}, max_buckets),
          .evaluations = {},
          .marks = {},
          .events = 0,
          .event_counts = {},
          .first_events = {},
          .last_events = {},
          .checkpoints = {},
          .latest = {},
          .latest_evaluations = {},
          .steps = {},
          .recent_steps = {},
          .tensors = {}};
}

/// Sets the epoch and the samples of a step, between those of the rows around it.
void complete_place(Place& place, const Track& track) {
  Place before{}, after{};
  const double step = coordinate(place, Axis::step);
  for (std::size_t bucket = 0; bucket < track.buckets(); ++bucket) {
    after = track.place(bucket);
    if (coordinate(after, Axis::step) >= step) break;
    before = after;
  }
  const double first = coordinate(before, Axis::step),
               width = coordinate(after, Axis::step) - first,
               part = width > 0 ? (step - first) / width : 0;
  for (const Axis axis : {Axis::epoch, Axis::samples})
    coordinate(place, axis) =
        coordinate(before, axis) + part * (coordinate(after, axis) - coordinate(before, axis));
}

}  // namespace

HistoryReader::HistoryReader(std::size_t max_buckets)
    : max_buckets_(max_buckets), history_(empty_history(max_buckets)) {}

std::vector<std::string> HistoryReader::keys() {
  std::vector<std::string> keys(train_names.begin(), train_names.end());
  for (const char* key : {"kind",    "step",        "epoch",     "samples",       "elapsed_s",
                          "read_s",  "decode_s",    "augment_s", "transfer_s",    "split",
                          "weights", "event",       "detail",    "bytes",         "stall_s",
                          "write_s", "noise_scale", "tensor",    "gradient_norm", "update_ratio"})
    keys.emplace_back(key);
  for (std::string& name : metric_words()) keys.push_back(std::move(name));
  return keys;
}

Place HistoryReader::place_of(const monitor::MetricsReader& row) const {
  const auto at = [&](const char* key) { return row.number(key).value_or(none); };
  const double epoch = at("epoch");
  return {at("step"), epoch, epoch * samples_per_epoch_.value_or(none), at("elapsed_s")};
}

void HistoryReader::add(const monitor::MetricsReader& row) {
  const auto& kind = row["kind"];
  if (!kind.is_string() || !row.number("step")) return;
  const auto& name = kind.get_ref<const std::string&>();
  if (name == "train") {
    add_train(row);
  } else if (name == "tensors") {
    if (row["tensor"].is_string())
      history_.tensors.add(*row.number("step"), text_of(row, "tensor", 200),
                           {value_of(row, "gradient_norm"), value_of(row, "update_ratio")});
  } else if (name == "evaluate") {
    add_evaluation(row);
  } else if (name == "event") {
    add_event(row);
  } else if (name == "checkpoint") {
    CheckpointTotals& totals = history_.checkpoints;
    ++totals.count;
    totals.bytes = row.number("bytes").value_or(0);
    totals.stall_seconds += row.number("stall_s").value_or(0);
    totals.write_seconds += row.number("write_s").value_or(0);
  } else if (name == "noise") {
    history_.noise.add(place_of(row), std::array{value_of(row, "noise_scale")});
  }
}

void HistoryReader::add_train(const monitor::MetricsReader& row) {
  const double step = *row.number("step"), samples = row.number("samples").value_or(none),
               epoch = row.number("epoch").value_or(none), steps = step - last_step_;
  if (epoch > 0 && samples > 0) samples_per_epoch_ = samples / epoch;
  // 1. The curves.
  values_.clear();
  for (const char* name : train_names) values_.push_back(value_of(row, name));
  const double batch = (samples - last_samples_) / steps;
  // After a restart the row before may be one of steps that are lost.
  values_.push_back(steps > 0 && batch > 0 && !is_first_row_ ? batch : none);
  history_.train.add({step, epoch, samples, row.number("elapsed_s").value_or(none)}, values_);
  for (std::size_t i = 0; i < values_.size(); ++i) {
    const std::string& name = history_.train.names()[i];
    if (std::isfinite(values_[i]))
      history_.latest[name] = values_[i];
    else if (!name.starts_with("memory_"))
      history_.latest.erase(name);
  }
  // 2. The times of the steps.
  if (steps > 0 && !is_first_row_) {
    const auto seconds = [&](const char* key) { return steps * row.number(key).value_or(0); };
    StepSums sums{.times = {}, .count = steps};
    train::StepTimes& times = sums.times;
    times.total = seconds("step_s");
    times.data = seconds("data_s");
    times.forward = seconds("forward_s");
    times.backward = seconds("backward_s");
    times.comm_exposed = seconds("comm_exposed_s");
    times.optimizer = seconds("optimizer_s");
    times.transfer = seconds("transfer_s");
    times.readers.read = seconds("read_s");
    times.readers.decode = seconds("decode_s");
    times.readers.augment = seconds("augment_s");
    history_.steps += sums;
    history_.recent_steps += sums;
  }
  is_first_row_ = false;
  last_step_ = step;
  last_samples_ = samples;
}

void HistoryReader::add_evaluation(const monitor::MetricsReader& row) {
  std::string set = text_of(row, "split", 40);
  if (set.empty()) return;
  if (row["weights"] == "ema") set += " (ema)";
  static const std::vector<std::string> names = metric_words();
  auto found = history_.evaluations.find(set);
  if (found == history_.evaluations.end()) {
    if (history_.evaluations.size() == max_evaluated_sets) return;
    found = history_.evaluations.emplace(set, Track(names, max_buckets_)).first;
  }
  std::vector<double> values;
  std::map<std::string, double>& latest = history_.latest_evaluations[set];
  latest.clear();
  for (const std::string& name : names) {
    values.push_back(value_of(row, name.c_str()));
    if (std::isfinite(values.back())) latest[name] = values.back();
  }
  found->second.add(place_of(row), values);
}

void HistoryReader::add_event(const monitor::MetricsReader& row) {
  Event event{.step = static_cast<std::int64_t>(*row.number("step")),
              .seconds = row.number("elapsed_s").value_or(0),
              .kind = text_of(row, "event", 40),
              .detail = text_of(row, "detail", 300)};
  if (event.kind.empty()) return;
  if (event.kind == "start") {
    *this = HistoryReader(max_buckets_);
  } else if (event.kind == "restart" || event.kind == "rollback" || event.kind == "batch") {
    is_first_row_ = is_first_row_ || event.kind != "batch";
    if (event.kind != "rollback") history_.recent_steps = {};
    if (history_.marks.size() == max_marks) history_.marks.erase(history_.marks.begin());
    history_.marks.push_back(
        {.kind = event.kind,
         .text = fmt::format("{} at step {}: {}", event.kind, event.step, event.detail),
         .place = {static_cast<double>(event.step), none, none, event.seconds}});
  }
  ++history_.events;
  if (history_.event_counts.size() < max_event_kinds || history_.event_counts.contains(event.kind))
    ++history_.event_counts[event.kind];
  if (history_.first_events.size() < max_first_events) {
    history_.first_events.push_back(std::move(event));
    return;
  }
  if (history_.last_events.size() == max_last_events) history_.last_events.pop_front();
  history_.last_events.push_back(std::move(event));
}

History HistoryReader::result() const {
  History history = history_;
  for (Mark& mark : history.marks) complete_place(mark.place, history.train);
  return history;
}

}  // namespace trireme::report
