// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trireme/monitor/metrics.hpp"
#include "trireme/report/tensor_course.hpp"
#include "trireme/report/track.hpp"
#include "trireme/train/step/step_pipeline.hpp"

namespace trireme::report {

/// An event of a run. Texts are printable and short.
struct Event {
  std::int64_t step = 0;
  double seconds = 0;  ///< elapsed_s
  std::string kind, detail;
};

/// A place on the curves that has a meaning: a restart, a rollback, another batch.
struct Mark {
  std::string kind, text;
  Place place{};
};

/// The checkpoints of a run.
struct CheckpointTotals {
  std::int64_t count = 0;
  double bytes = 0;                             ///< of the latest
  double stall_seconds = 0, write_seconds = 0;  ///< of all
};

/// The times of some steps of rank 0.
struct StepSums {
  train::StepTimes times;  ///< sums, in seconds
  double count = 0;
  StepSums& operator+=(const StepSums& other) {
    times += other.times;
    count += other.count;
    return *this;
  }
};

/// The rows of a run, thinned.
struct History {
  /// Rows of kind train, by the keys of their numbers, and `batch`: samples of a step.
  Track train;
  /// Rows of kind noise: noise_scale.
  Track noise;
  /// Evaluations: "validation", "validation-subset", "test", and with averaged weights
  /// "validation (ema)".
  std::map<std::string, Track> evaluations;
  std::vector<Mark> marks;
  std::int64_t events = 0;
  std::map<std::string, std::int64_t> event_counts;  ///< of at most 64 kinds
  /// The first events and, if there are more, the last ones.
  std::vector<Event> first_events;
  std::deque<Event> last_events;
  CheckpointTotals checkpoints;
  /// The finite numbers of the latest row of kind train, and of the latest evaluation of each set.
  /// Memory in use, which few rows have, is the latest known.
  std::map<std::string, double> latest;
  std::map<std::string, std::map<std::string, double>> latest_evaluations;
  /// The times of all steps but those before the first row of each start, which contain
  /// preparations.
  StepSums steps;
  /// The same since the latest start, or the latest row of batch.ramp.
  StepSums recent_steps;
  TensorCourse tensors;
};

/// Reads the history of a run from the rows of its metrics.jsonl. Bounded memory.
class HistoryReader {
 public:
  /// `max_buckets`: of each track; even.
  explicit HistoryReader(std::size_t max_buckets);
  /// Returns the keys that a MetricsReader must read for add().
  static std::vector<std::string> keys();
  void add(const monitor::MetricsReader& row);
  /// Returns the history of all rows so far.
  History result() const;

  static constexpr std::size_t max_first_events = 100, max_last_events = 100;

 private:
  void add_train(const monitor::MetricsReader& row);
  void add_evaluation(const monitor::MetricsReader& row);
  void add_event(const monitor::MetricsReader& row);
  Place place_of(const monitor::MetricsReader& row) const;

  std::size_t max_buckets_;
  History history_;
  std::vector<double> values_;  ///< of a row of kind train
  double last_step_ = 0, last_samples_ = 0;
  std::optional<double> samples_per_epoch_;
  bool is_first_row_ = true;  ///< of a start
};

}  // namespace trireme::report
