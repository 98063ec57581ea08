// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace trireme::report {

/// The axes of curves.
enum class Axis : std::uint8_t { step, epoch, samples, seconds };
inline constexpr std::array axis_names{"step", "epoch", "samples", "seconds"};

/// A place in a run: its value on each axis, NaN where it is unknown.
using Place = std::array<double, axis_names.size()>;
inline double& coordinate(Place& place, Axis axis) { return place[static_cast<std::size_t>(axis)]; }
inline double coordinate(const Place& place, Axis axis) {
  return place[static_cast<std::size_t>(axis)];
}

/// Numbers over the course of a run, in bounded memory.
///
/// Each bucket holds the range and the mean of all rows in it, so no extreme is lost. A bucket is
/// one row until there are too many; then neighbors are joined in pairs.
class Track {
 public:
  /// The values of one number in a bucket.
  struct Range {
    double low = std::numeric_limits<double>::infinity(), high = -low, sum = 0;
    std::int64_t count = 0;
    bool has_values() const { return count > 0; }
    double mean() const { return sum / static_cast<double>(count); }
  };

  /// `names`: of the numbers. `max_buckets`: at least 2, even.
  Track(std::vector<std::string> names, std::size_t max_buckets)
      : names_(std::move(names)), max_buckets_(max_buckets) {}

  /// Adds a row: one value for each name, NaN for none. A step before that of the last row begins
  /// another part, which no line connects with the one before.
  void add(const Place& place, std::span<const double> values);

  const std::vector<std::string>& names() const { return names_; }
  std::size_t buckets() const { return places_.size(); }
  /// Returns the mean place of the rows in a bucket, those of its last part.
  const Place& place(std::size_t bucket) const { return places_[bucket]; }
  /// Returns the place of the latest row.
  const Place& last_place() const { return last_place_; }
  /// Returns whether steps were made again before the end of this bucket.
  bool begins_part(std::size_t bucket) const { return begins_part_[bucket] != 0; }
  const Range& range(std::size_t bucket, std::size_t name) const {
    return ranges_[bucket * names_.size() + name];
  }
  /// Halves the number of buckets.
  void reduce();
  /// Returns the range over all buckets.
  Range whole_range(std::size_t name) const;
  /// Returns means over neighboring buckets, one for each bucket; NaN where it has no values. A
  /// bucket counts by its rows. Buckets of different parts are not mixed.
  std::vector<double> smoothed(std::size_t name) const;

 private:
  std::vector<std::string> names_;
  std::size_t max_buckets_;
  std::vector<Place> places_;
  Place last_place_{};
  std::vector<char> begins_part_;
  std::vector<Range> ranges_;  ///< by bucket, then name
  std::int64_t rows_per_bucket_ = 1, rows_of_last_ = 0;
};

}  // namespace trireme::report
