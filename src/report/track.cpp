// SPDX-License-Identifier: Apache-2.0
#include "trireme/report/track.hpp"

#include <algorithm>
#include <cmath>

namespace trireme::report {
namespace {

void join(Track::Range& into, const Track::Range& other) {
  into.low = std::min(into.low, other.low);
  into.high = std::max(into.high, other.high);
  into.sum += other.sum;
  into.count += other.count;
}

}  // namespace

void Track::add(const Place& place, std::span<const double> values) {
  const bool goes_back =
      !places_.empty() && coordinate(place, Axis::step) < coordinate(last_place_, Axis::step);
  last_place_ = place;
  if (rows_of_last_ == 0) {
    if (places_.size() == max_buckets_) reduce();
    places_.push_back(place);
    begins_part_.push_back(0);
    ranges_.resize(ranges_.size() + names_.size());
  }
  for (std::size_t axis = 0; axis < place.size(); ++axis) {
    double& mean = places_.back()[axis];
    mean = goes_back ? place[axis]
                     : mean + (place[axis] - mean) / static_cast<double>(rows_of_last_ + 1);
  }
  begins_part_.back() |= static_cast<char>(goes_back);
  Range* const ranges = &ranges_[ranges_.size() - names_.size()];
  for (std::size_t name = 0; name < names_.size(); ++name)
    if (std::isfinite(values[name]))
      join(ranges[name],
           {.low = values[name], .high = values[name], .sum = values[name], .count = 1});
  if (++rows_of_last_ == rows_per_bucket_) rows_of_last_ = 0;
}

void Track::reduce() {
  if (places_.empty()) return;
  const std::size_t last = places_.size() - 1, half = (places_.size() + 1) / 2;
  for (std::size_t i = 0; i < half; ++i) {
    const std::size_t first = 2 * i, second = std::min(first + 1, last);
    const Place later = places_[second];
    for (std::size_t axis = 0; axis < later.size(); ++axis)
      places_[i][axis] =
          begins_part_[second] != 0 ? later[axis] : (places_[first][axis] + later[axis]) / 2;
    begins_part_[i] = static_cast<char>(begins_part_[first] | begins_part_[second]);
    for (std::size_t name = 0; name < names_.size(); ++name) {
      Range joined = range(first, name);
      if (second != first) join(joined, range(second, name));
      ranges_[i * names_.size() + name] = joined;
    }
  }
  places_.resize(half);
  begins_part_.resize(half);
  ranges_.resize(half * names_.size());
  rows_per_bucket_ *= 2;
}

Track::Range Track::whole_range(std::size_t name) const {
  Range whole;
  for (std::size_t bucket = 0; bucket < buckets(); ++bucket) join(whole, range(bucket, name));
  return whole;
}

std::vector<double> Track::smoothed(std::size_t name) const {
  constexpr std::size_t windows = 40;  // of the whole run
  const std::size_t reach = buckets() / (2 * windows);
  std::vector<double> result(buckets(), std::numeric_limits<double>::quiet_NaN());
  for (std::size_t bucket = 0; bucket < buckets(); ++bucket) {
    if (!range(bucket, name).has_values()) continue;
    Range window = range(bucket, name);
    // As far to the left as to the right: a mean of fewer buckets at the ends of a part has no
    // offset.
    for (std::size_t i = 1; i <= reach; ++i) {
      if (bucket < i || bucket + i >= buckets()) break;
      if (begins_part(bucket - i + 1) || begins_part(bucket + i)) break;
      join(window, range(bucket - i, name));
      join(window, range(bucket + i, name));
    }
    result[bucket] = window.mean();
  }
  return result;
}

}  // namespace trireme::report
