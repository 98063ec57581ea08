#pragma once

// Who works on a row (or another piece) whose parts must be added up: on the host one thread, whose loops are vectorised; on a device a
// team, an element a thread. A functor is called as functor(index, group) and walks over [0, count) by
//   for (std::int64_t i = group.first(); i < count; i += group.step())

#include <utility>

#include "launch.hpp"

namespace trireme::kernels {

/// Several sums, made in one pass.
template <int count>
struct Sums {
  double value[count] = {};
};

class HostGroup {
 public:
  KOKKOS_FUNCTION static constexpr std::int64_t first() { return 0; }
  KOKKOS_FUNCTION static constexpr std::int64_t step() { return 1; }

  /// The sum of each term(i) over [0, count), all in one pass and one order: 16 lanes in float32 over blocks of 1024 numbers, the blocks in double.
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
        for (int lane = 0; lane < lanes; ++lane) add(partial, lane, i + lane, std::index_sequence_for<Terms...>(), terms...);
      }
      for (int lane = 0; i < end; ++i, ++lane) add(partial, lane, i, std::index_sequence_for<Terms...>(), terms...);
      for (int s = 0; s < sums; ++s) {
        for (int lane = 0; lane < lanes; ++lane) total.value[s] += partial[s][lane];
      }
    }
    return total;
  }
  /// `total` and such sums with terms in double, one after the other.
  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> add_in_double(Sums<sums> total, std::int64_t count, const Term& term) const {
    for (std::int64_t i = 0; i < count; ++i) {
      double value[sums];
      term(i, value);
      for (int s = 0; s < sums; ++s) total.value[s] += value[s];
    }
    return total;
  }
  /// How many i of [begin, end) are so.
  template <class Predicate>
  KOKKOS_FUNCTION std::int32_t count(std::int64_t begin, std::int64_t end, const Predicate& predicate) const {
    std::int32_t number = 0;
#pragma omp simd reduction(+ : number)
    for (std::int64_t i = begin; i < end; ++i) number += predicate(i);
    return number;
  }
  /// Of value(i) over [0, count), count > 0. Not the largest where one is not a number.
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
    for (int lane = 1; lane < lanes; ++lane) largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
    return largest[0];
  }
  /// Whether this thread writes what is the group's.
  KOKKOS_FUNCTION static constexpr bool leads() { return true; }
  /// Whether this thread has walked over i.
  KOKKOS_FUNCTION static constexpr bool walks(std::int64_t) { return true; }

 private:
  template <int sums, int lanes, std::size_t... s, class... Terms>
  KOKKOS_FORCEINLINE_FUNCTION static void add(float (&partial)[sums][lanes], int lane, std::int64_t i, std::index_sequence<s...>, const Terms&... terms) {
    ((partial[s][lane] += terms(i)), ...);
  }
};

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
    reduce(total);
    return total;
  }
  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> add_in_double(const Sums<sums>& before, std::int64_t count, const Term& term) const {
    Sums<sums> total = leads() ? before : Sums<sums>();
    for (std::int64_t i = first(); i < count; i += step()) {
      double value[sums];
      term(i, value);
      for (int s = 0; s < sums; ++s) total.value[s] += value[s];
    }
    reduce(total);
    return total;
  }
  template <class Predicate>
  KOKKOS_FUNCTION std::int32_t count(std::int64_t begin, std::int64_t end, const Predicate& predicate) const {
    std::int32_t number = 0;
    for (std::int64_t i = begin + first(); i < end; i += step()) number += predicate(i);
    reduce(Kokkos::Sum<std::int32_t>(number));
    return number;
  }
  template <class Value>
  KOKKOS_FUNCTION float largest(std::int64_t count, const Value& value) const {
    float largest = value(0);
    for (std::int64_t i = first(); i < count; i += step()) largest = value(i) > largest ? value(i) : largest;
    reduce(Kokkos::Max<float>(largest));
    return largest;
  }
  KOKKOS_FUNCTION bool leads() const { return member_.team_rank() == 0; }
  KOKKOS_FUNCTION bool walks(std::int64_t i) const { return i % step() == first(); }

 private:
  template <int sums>
  KOKKOS_FUNCTION void reduce(Sums<sums>& total) const {
    for (int s = 0; s < sums; ++s) reduce(Kokkos::Sum<double>(total.value[s]));
  }
  /// The result is every thread's. Kokkos takes the same shared memory each time: nobody may still read the last result.
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
  KOKKOS_FUNCTION void operator()(const Member& member) const { functor(static_cast<std::int64_t>(member.league_rank()), TeamGroup<Member>(member)); }
};

/// functor(index, group) for every index of [0, count).
template <class Space, class Functor>
void for_each_group(const Space& space, const std::string& label, std::int64_t count, const Functor& functor) {
  if (count <= 0) return;
  if constexpr (on_host<Space>) {
    for_each_index(space, label, count, OnHostGroup<Functor>{functor});
  } else {
    Kokkos::parallel_for(Label{label}, Kokkos::TeamPolicy<Space>(space, static_cast<int>(count), Kokkos::AUTO), OnTeamGroup<Space, Functor>{functor});
  }
}

}  // namespace trireme::kernels
