// SPDX-License-Identifier: Apache-2.0
#pragma once

// Threads that cooperate on one row (or another piece) whose parts must be summed: on the host one
// thread with vectorized loops, on a device a team with one element per thread.
// A functor is called as functor(index, group) and walks over [0, count) by
//   for (std::int64_t i = group.first(); i < count; i += group.step())

#include <utility>

#include "launch.hpp"

namespace trireme::kernels {

/// Several sums that are computed in one pass.
template <int count, class Number = double>
struct Sums {
  Number value[count] = {};
};

/// Kokkos reducer of such sums.
template <class Value>
class SumsReducer {
 public:
  using reducer = SumsReducer;
  using value_type = Value;
  using result_view_type = Kokkos::View<Value, Kokkos::AnonymousSpace, Kokkos::MemoryUnmanaged>;

  KOKKOS_FUNCTION explicit SumsReducer(Value& value) : value_(&value) {}
  KOKKOS_FUNCTION void join(Value& to, const Value& other) const {
    for (int s = 0; s < static_cast<int>(sizeof(to.value) / sizeof(to.value[0])); ++s)
      to.value[s] += other.value[s];
  }
  KOKKOS_FUNCTION void init(Value& value) const { value = Value(); }
  KOKKOS_FUNCTION Value& reference() const { return *value_; }
  KOKKOS_FUNCTION result_view_type view() const { return result_view_type(value_); }

 private:
  Value* value_;
};

/// A group of one host thread. TeamGroup has the same interface.
class HostGroup {
 public:
  KOKKOS_FUNCTION static constexpr std::int64_t first() { return 0; }
  KOKKOS_FUNCTION static constexpr std::int64_t step() { return 1; }

  /// Returns the sum of each term(i) over [0, count), all in one pass and one order: 16 float32
  /// lanes over blocks of 1024 numbers, then the blocks in double.
  template <class... Terms>
  KOKKOS_FUNCTION Sums<sizeof...(Terms)> sum(std::int64_t count, const Terms&... terms) const {
    constexpr int lanes = 16, sums = sizeof...(Terms);
    constexpr std::int64_t block = 1024;
    Sums<sums> total;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t end = begin + block < count ? begin + block : count;
      float partial[sums][lanes] = {};
      std::int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
#pragma omp simd
        for (int lane = 0; lane < lanes; ++lane)
          add(partial, lane, i + lane, std::index_sequence_for<Terms...>(), terms...);
      }
      for (int lane = 0; i < end; ++i, ++lane)
        add(partial, lane, i, std::index_sequence_for<Terms...>(), terms...);
      for (int s = 0; s < sums; ++s) {
        for (int lane = 0; lane < lanes; ++lane) total.value[s] += partial[s][lane];
      }
    }
    return total;
  }
  /// Returns `total` plus the sums of terms in double, in ascending order.
  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> add_in_double(Sums<sums> total, std::int64_t count,
                                           const Term& term) const {
    for (std::int64_t i = 0; i < count; ++i) {
      double value[sums];
      term(i, value);
      for (int s = 0; s < sums; ++s) total.value[s] += value[s];
    }
    return total;
  }
  /// Returns the number of i in [begin, end) for which the predicate is true.
  template <class Predicate>
  KOKKOS_FUNCTION std::int32_t count(std::int64_t begin, std::int64_t end,
                                     const Predicate& predicate) const {
    std::int32_t number = 0;
#pragma omp simd reduction(+ : number)
    for (std::int64_t i = begin; i < end; ++i) number += predicate(i);
    return number;
  }
  /// Returns the maximum of value(i) over [0, count), count > 0. The result is arbitrary if one of
  /// them is NaN.
  template <class Value>
  KOKKOS_FUNCTION float largest(std::int64_t count, const Value& value) const {
    constexpr int lanes = 16;
    float largest[lanes];
    for (int lane = 0; lane < lanes; ++lane) largest[lane] = value(0);
    std::int64_t i = 0;
    for (; i + lanes <= count; i += lanes) {
#pragma omp simd
      for (int lane = 0; lane < lanes; ++lane) {
        const float other = value(i + lane);
        largest[lane] = other > largest[lane] ? other : largest[lane];
      }
    }
    for (; i < count; ++i) largest[0] = value(i) > largest[0] ? value(i) : largest[0];
    for (int lane = 1; lane < lanes; ++lane)
      largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
    return largest[0];
  }
  /// Returns whether this thread writes the group's results.
  KOKKOS_FUNCTION static constexpr bool is_leader() { return true; }

 private:
  template <int sums, int lanes, std::size_t... s, class... Terms>
  KOKKOS_FORCEINLINE_FUNCTION static void add(float (&partial)[sums][lanes], int lane,
                                              std::int64_t i, std::index_sequence<s...>,
                                              const Terms&... terms) {
    ((partial[s][lane] += terms(i)), ...);
  }
};

/// A group that is one device team: an element per thread. All members of a team must call sum(),
/// add_up() and the other reductions.
template <class Member>
class TeamGroup {
 public:
  KOKKOS_FUNCTION explicit TeamGroup(const Member& member) : member_(member) {}
  KOKKOS_FUNCTION std::int64_t first() const { return member_.team_rank(); }
  KOKKOS_FUNCTION std::int64_t step() const { return member_.team_size(); }

  template <class... Terms>
  KOKKOS_FUNCTION Sums<sizeof...(Terms)> sum(std::int64_t count, const Terms&... terms) const {
    Sums<sizeof...(Terms)> total;
    for (std::int64_t i = first(); i < count; i += step()) {
      int s = 0;
      ((total.value[s++] += terms(i)), ...);
    }
    add_up(total);
    return total;
  }
  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> add_in_double(const Sums<sums>& before, std::int64_t count,
                                           const Term& term) const {
    Sums<sums> total = is_leader() ? before : Sums<sums>();
    for (std::int64_t i = first(); i < count; i += step()) {
      double value[sums];
      term(i, value);
      for (int s = 0; s < sums; ++s) total.value[s] += value[s];
    }
    add_up(total);
    return total;
  }

  /// Replaces each thread's sums by the sums over all threads. One call for several sums is cheaper
  /// than several calls: a reduction costs its latency.
  template <int sums, class Number>
  KOKKOS_FUNCTION void add_up(Sums<sums, Number>& total) const {
    if constexpr (sizeof(total) == sizeof(double) && sizeof(Number) < sizeof(double)) {
      // Kokkos moves 8 bytes between threads as one double; two floats would go through memory. So
      // a third float is added.
      Sums<sums + 1, Number> wider;
      for (int s = 0; s < sums; ++s) wider.value[s] = total.value[s];
      reduce(SumsReducer<Sums<sums + 1, Number>>(wider));
      for (int s = 0; s < sums; ++s) total.value[s] = wider.value[s];
    } else {
      reduce(SumsReducer<Sums<sums, Number>>(total));
    }
  }
  /// Returns the maximum over the threads.
  KOKKOS_FUNCTION float largest_of(float value) const {
    reduce(Kokkos::Max<float>(value));
    return value;
  }
  /// Returns the sum over the threads.
  KOKKOS_FUNCTION std::int32_t sum_of(std::int32_t count) const {
    reduce(Kokkos::Sum<std::int32_t>(count));
    return count;
  }
  KOKKOS_FUNCTION bool is_leader() const { return member_.team_rank() == 0; }

 private:
  /// Every thread gets the result. The barrier is needed because Kokkos reuses one block of shared
  /// memory: all threads must have read the previous result.
  template <class Reducer>
  KOKKOS_FUNCTION void reduce(const Reducer& reducer) const {
    member_.team_barrier();
    member_.team_reduce(reducer);
  }

  const Member& member_;
};

template <class Functor>
struct OnHostGroup {
  Functor functor;
  KOKKOS_FUNCTION void operator()(std::int64_t index) const { functor(index, HostGroup{}); }
};

template <class Space, class Functor>
struct OnTeamGroup {
  Functor functor;
  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& member) const {
    functor(static_cast<std::int64_t>(member.league_rank()), TeamGroup<Member>(member));
  }
};

/// Enqueues functor(index, group) for every index in [0, count), on a device, by teams of
/// `threads`.
template <class Space, class Functor>
void for_each_team(const Space& space, const std::string& label, std::int64_t count, int threads,
                   const Functor& functor) {
  if (count <= 0) return;
  enqueue(label,
          Kokkos::TeamPolicy<Space>(space, static_cast<int>(count), team_threads(space, threads)),
          OnTeamGroup<Space, Functor>{functor});
}

/// Enqueues functor(index, group) for every index in [0, count): one thread per index on the host,
/// one team on a device.
template <class Space, class Functor>
void for_each_group(const Space& space, const std::string& label, std::int64_t count,
                    const Functor& functor) {
  if constexpr (on_host<Space>) {
    for_each_index(space, label, count, OnHostGroup<Functor>{functor});
  } else {
    for_each_team(space, label, count, default_team_size, functor);
  }
}

/// Returns the threads of a team that processes `items` with `each` items per thread: whole warps,
/// at most `max_threads`.
inline int threads_for(std::int64_t items, std::int64_t each, int max_threads) {
  constexpr std::int64_t warp = 32;
  const std::int64_t warps = (items + each * warp - 1) / (each * warp);
  return static_cast<int>(warps * warp < max_threads ? (warps > 0 ? warps : 1) * warp
                                                     : max_threads);
}

}  // namespace trireme::kernels
