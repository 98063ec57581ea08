// SPDX-License-Identifier: Apache-2.0
//
// Collects what `trireme watch` shows of a run from the rows of its metrics.jsonl: the latest row,
// the course of some numbers in bounded memory, the latest evaluations and events. Called by
// command_watch.cpp; watch_text.cpp makes lines of it.
#include "run_status.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/answer.hpp"
#include "trireme/base/text.hpp"
#include "watch_text.hpp"

namespace trireme::app {
namespace {

constexpr std::array train_keys = {"step",
                                   "epoch",
                                   "samples",
                                   "loss",
                                   "rate",
                                   "grad_norm",
                                   "samples_per_s",
                                   "tokens_per_s",
                                   "step_s",
                                   "data_s",
                                   "forward_s",
                                   "backward_s",
                                   "optimizer_s",
                                   "comm_exposed_s",
                                   "memory_device_bytes",
                                   "memory_host_bytes",
                                   "mfu",
                                   "gpu_util",
                                   "gpu_temp_c",
                                   "gpu_power_w",
                                   "gpu_clock_mhz",
                                   "elapsed_s"};

std::string text_of(const nlohmann::ordered_json& value) {
  constexpr std::size_t max_letters = 200;
  return value.is_string() ? printable(value.get_ref<const std::string&>(), max_letters) : "";
}

}  // namespace

void Course::add(double value) {
  constexpr double largest = 1e150;  // sums of larger ones may overflow
  if (std::abs(value) <= largest) track_.add({}, std::array{value});
}

std::vector<double> Course::means(std::size_t columns) const {
  std::vector<double> all;
  for (std::size_t bucket = 0; bucket < track_.buckets(); ++bucket)
    all.push_back(track_.range(bucket, 0).mean());
  if (all.size() <= columns) return all;
  std::vector<double> result(columns);
  for (std::size_t i = 0; i < columns; ++i) {
    const std::size_t begin = i * all.size() / columns, end = (i + 1) * all.size() / columns;
    double sum = 0;
    for (std::size_t j = begin; j < end; ++j) sum += all[j];
    result[i] = sum / static_cast<double>(end - begin);
  }
  return result;
}

std::string sparkline(const std::vector<double>& values) {
  if (values.empty()) return "";
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const double range = *high - *low;
  std::string line;
  for (const double value : values) {
    const int level = range > 0 ? static_cast<int>(std::lround(7 * (value - *low) / range)) : 3;
    // The blocks are E2 96 81 to E2 96 88 in UTF-8.
    line += "\xE2\x96";
    line += static_cast<char>(0x81 + level);
  }
  return line;
}

std::vector<std::string> RunStatus::keys() {
  std::vector<std::string> keys(train_keys.begin(), train_keys.end());
  for (const char* key : {"kind", "event", "detail", "split", "job", "time_limit"})
    keys.emplace_back(key);
  for (std::string& key : metric_words()) keys.push_back(std::move(key));
  return keys;
}

void RunStatus::set_stop(std::optional<Duration> stop, std::int64_t tokens_per_sample) {
  stop_ = stop;
  tokens_per_sample_ = tokens_per_sample;
  part_done_.reset();
  part_per_second_ = 0;
}

std::optional<std::string> RunStatus::add(const monitor::MetricsReader& row) {
  const auto& kind = row["kind"];
  const auto step = static_cast<std::int64_t>(row.number("step").value_or(0));
  if (kind == "train") {
    add_train(row);
    return line_of(*this);
  }
  if (kind == "event") {
    constexpr std::size_t max_events = 5;
    events_.push_back({step, fmt::format("{}: {}", text_of(row["event"]), text_of(row["detail"]))});
    if (events_.size() > max_events) events_.pop_front();
    return line_of(events_.back());
  }
  if (kind == "evaluate") {
    const std::string split = text_of(row["split"]);
    constexpr std::size_t max_splits = 8;
    if (split.empty() || (evaluations_.size() == max_splits && !evaluations_.contains(split)))
      return std::nullopt;
    std::string text;
    for (const EvaluationMetric& metric : evaluation_metrics())
      if (const auto value = row.number(metric.word))
        text += fmt::format("{}{} {}", text.empty() ? "" : ", ", metric.label,
                            value_text(metric, *value));
    evaluations_[split] = {step, text};
  }
  if (kind == "account") {
    job_ = text_of(row["job"]);
    time_limit_ = row.number("time_limit");
  }
  return std::nullopt;
}

void RunStatus::add_train(const monitor::MetricsReader& row) {
  values_.clear();
  for (const char* key : train_keys)
    if (const auto number = row.number(key)) values_[key] = *number;
  for (auto& [key, course] : courses_) course.add(value(key).value_or(NAN));
  const std::optional<double> part = part_at(row);
  const double elapsed = value("elapsed_s").value_or(0), seconds = elapsed - last_elapsed_;
  // After a rollback, or in another start, there is no speed until the next row.
  if (part && part_done_ && *part > *part_done_ && seconds > 0) {
    constexpr double weight = 0.2;  // of the latest speed
    const double speed = (*part - *part_done_) / seconds;
    part_per_second_ =
        part_per_second_ == 0 ? speed : (1 - weight) * part_per_second_ + weight * speed;
  }
  part_done_ = part;
  last_elapsed_ = elapsed;
}

std::optional<double> RunStatus::part_at(const monitor::MetricsReader& row) const {
  if (!stop_ || stop_->value <= 0) return std::nullopt;
  const auto done = [&]() -> std::optional<double> {
    switch (stop_->unit) {
      case Duration::Unit::steps: return row.number("step");
      case Duration::Unit::epochs: return row.number("epoch");
      case Duration::Unit::samples: return row.number("samples");
      case Duration::Unit::tokens:
        if (const auto samples = row.number("samples"))
          return *samples * static_cast<double>(tokens_per_sample_);
        return std::nullopt;
      case Duration::Unit::seconds: return row.number("elapsed_s");
    }
    return std::nullopt;
  }();
  return done ? std::optional(std::clamp(*done / stop_->value, 0.0, 1.0)) : std::nullopt;
}

std::optional<double> RunStatus::value(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<double> RunStatus::seconds_left() const {
  if (!part_done_ || part_per_second_ <= 0) return std::nullopt;
  return (1 - *part_done_) / part_per_second_;
}

}  // namespace trireme::app
