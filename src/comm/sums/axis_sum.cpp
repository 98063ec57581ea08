// SPDX-License-Identifier: Apache-2.0
//
// Sums float64 values along the axes of a mesh, in the order of base/tree.hpp (SumOrder::axes).
//
// Engine::State polls the request: post(0), complete(0), post(1), ... A step of an axis has at
// most one message in each direction. The order of the additions follows from the positions
// alone, so nodes and libraries have no influence on the bits.

#include "axis_sum.hpp"

#include <bit>

#include <fmt/format.h>

namespace trireme::comm {
namespace {

bool is_power_of_two(int size) { return std::has_single_bit(static_cast<unsigned>(size)); }

/// Returns the depth of the halving of `size` positions: ceil(log2(size)).
int levels(int size) { return std::bit_width(static_cast<unsigned>(size - 1)); }

/// Positions that one partial sum covers: [begin, end). Its halves are [begin, middle) and
/// [middle, end).
struct Range {
  int begin = 0, end = 0;
  int middle() const { return begin + (end - begin) / 2; }
  bool is_split() const { return end - begin > 1; }
};

/// Returns the range of a level of the halving that holds `position`. Level 0 is the whole axis. A
/// range of one position is on all deeper levels, too.
Range range_of(int size, int position, int level) {
  Range range{0, size};
  for (; level > 0 && range.is_split(); --level) {
    const int middle = range.middle();
    range = position < middle ? Range{range.begin, middle} : Range{middle, range.end};
  }
  return range;
}

}  // namespace

AxisSum::AxisSum(int rank, std::span<const RankAxis> axes, double* values, double* scratch,
                 std::int64_t count)
    : rank_(rank), axes_(axes), values_(values), scratch_(scratch), count_(count) {
  for (const RankAxis& axis : axes) steps_ += steps_on_axis(axis.size);
}

int AxisSum::steps_on_axis(int size) { return (is_power_of_two(size) ? 1 : 2) * levels(size); }

AxisSum::Exchange AxisSum::exchange_on_axis(int size, int position, int step) {
  if (is_power_of_two(size)) {
    const int partner = position ^ (1 << step);
    return {.to = partner, .from = partner, .adds = true};
  }
  // Up from the deepest level to the whole axis, then down again.
  const bool climbs = step < levels(size);
  const Range range =
      range_of(size, position, climbs ? levels(size) - 1 - step : step - levels(size));
  if (!range.is_split()) return {};
  const int lower = range.begin, upper = range.middle();
  if (position == lower)
    return climbs ? Exchange{.from = upper, .adds = true} : Exchange{.to = upper};
  if (position == upper) return climbs ? Exchange{.to = lower} : Exchange{.from = lower};
  return {};
}

AxisSum::Exchange AxisSum::exchange(int step) const {
  for (const RankAxis& axis : axes_) {
    if (step >= steps_on_axis(axis.size)) {
      step -= steps_on_axis(axis.size);
      continue;
    }
    const int position = rank_ / axis.stride % axis.size;
    Exchange found = exchange_on_axis(axis.size, position, step);
    for (int* other : {&found.to, &found.from})
      if (*other >= 0) *other = rank_ + (*other - position) * axis.stride;
    return found;
  }
  return {};
}

void AxisSum::post(Calls& calls, int step) const {
  const Exchange mine = exchange(step);
  if (mine.from >= 0) {
    double* const into = mine.adds ? scratch_ : values_;
    calls.receive(std::as_writable_bytes(std::span(into, into + count_)), mine.from);
  }
  if (mine.to >= 0) calls.send(std::as_bytes(std::span(values_, values_ + count_)), mine.to);
}

void AxisSum::complete(Calls& calls, int step) const {
  if (exchange(step).adds) calls.add(scratch_, values_, count_);
}

std::string AxisSum::describe(const Communicator::Implementation& group) const {
  return fmt::format("{} bytes over {}, axis order", count_ * std::int64_t{sizeof(double)},
                     group.describe());
}

}  // namespace trireme::comm
