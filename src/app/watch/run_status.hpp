// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/base/duration.hpp"
#include "trireme/monitor/metrics.hpp"
#include "trireme/report/track.hpp"

namespace trireme::app {

/// The course of a number over a run, in bounded memory. Values that are not finite, or beyond
/// 1e150, are left out.
class Course {
 public:
  void add(double value);
  /// Returns at most `columns` means over equal parts of the run, in its order.
  std::vector<double> means(std::size_t columns) const;

 private:
  static constexpr std::size_t max_means = 512;
  report::Track track_{{"value"}, max_means};
};

/// Returns a line of block characters (U+2581 to U+2588) from the least to the largest value; the
/// middle one if all are equal.
std::string sparkline(const std::vector<double>& values);

/// The state of a run for `trireme watch`, from the rows of its metrics.jsonl. Texts are printable
/// and short. Numbers beyond all measure are left out.
class RunStatus {
 public:
  /// An event, or an evaluation, as one line.
  struct Note {
    std::int64_t step = 0;
    std::string text;
  };
  /// Sets run.stop of the deck, if that is known. `tokens_per_sample`: of a language model.
  void set_stop(std::optional<Duration> stop, std::int64_t tokens_per_sample);
  /// Returns the keys that a MetricsReader must read for add().
  static std::vector<std::string> keys();
  /// Takes the next row. Returns a line for a log if the row is of kind train, or an event.
  std::optional<std::string> add(const monitor::MetricsReader& row);

  /// Returns a value of the latest row of kind train; none if it lacks the key.
  std::optional<double> value(const std::string& key) const;
  /// Returns the done part of the run (0 to 1), and the seconds that are left by the recent speed.
  std::optional<double> part_done() const { return part_done_; }
  std::optional<double> seconds_left() const;
  /// Returns when the latest start must end, in seconds since 1970-01-01 UTC.
  std::optional<double> time_limit() const { return time_limit_; }
  /// Returns the loss and others by their key: "loss", "rate", "samples_per_s".
  const Course& course(const std::string& key) const { return courses_.at(key); }
  /// Returns the latest evaluation of each set.
  const std::map<std::string, Note>& evaluations() const { return evaluations_; }
  /// Returns the latest events, at most 5.
  const std::deque<Note>& events() const { return events_; }
  const std::string& job() const { return job_; }

 private:
  void add_train(const monitor::MetricsReader& row);
  std::optional<double> part_at(const monitor::MetricsReader& row) const;

  std::optional<Duration> stop_;
  std::int64_t tokens_per_sample_ = 0;
  std::map<std::string, double> values_;
  std::map<std::string, Course> courses_{{"loss", {}}, {"rate", {}}, {"samples_per_s", {}}};
  std::map<std::string, Note> evaluations_;
  std::deque<Note> events_;
  std::optional<double> part_done_, time_limit_;
  double part_per_second_ = 0, last_elapsed_ = 0;
  std::string job_;
};

}  // namespace trireme::app
