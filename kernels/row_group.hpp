#pragma once

// Who works on a row (or another piece) whose parts must be added up: on the host one thread, whose loops are vectorised; on a device a
// team, an element a thread. A functor is called as functor(index, group) and walks over [0, count) by
//   for (std::int64_t i = group.first(); i < count; i += group.step())

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

  /// sums[s] of term(i)[s] over [0, count), in one order: 16 lanes in float32 over blocks of 1024 numbers, the blocks in double.
  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> sum(std::int64_t count, const Term& term) const {
    constexpr int lanes = 16;
    constexpr std::int64_t block = 1024;
    Sums<sums> total;
    for (std::int64_t begin = 0; begin < count; begin += block) {
      const std::int64_t end = begin + block < count ? begin + block : count;
      float partial[sums][lanes] = {};
      std::int64_t i = begin;
      for (; i + lanes <= end; i += lanes) {
#pragma omp simd
        for (int lane = 0; lane < lanes; ++lane) {
          float value[sums];
          term(i + lane, value);
          for (int s = 0; s < sums; ++s) partial[s][lane] += value[s];
        }
      }
      for (int lane = 0; i < end; ++i, ++lane) {
        float value[sums];
        term(i, value);
        for (int s = 0; s < sums; ++s) partial[s][lane] += value[s];
      }
      for (int s = 0; s < sums; ++s) {
        for (int lane = 0; lane < lanes; ++lane) total.value[s] += partial[s][lane];
      }
    }
    return total;
  }
  /// Whether this thread writes what is the group's.
  KOKKOS_FUNCTION static constexpr bool leads() { return true; }
};

template <class Member>
class TeamGroup {
 public:
  KOKKOS_FUNCTION explicit TeamGroup(const Member& member) : member_(member) {}
  KOKKOS_FUNCTION std::int64_t first() const { return member_.team_rank(); }
  KOKKOS_FUNCTION std::int64_t step() const { return member_.team_size(); }

  template <int sums, class Term>
  KOKKOS_FUNCTION Sums<sums> sum(std::int64_t count, const Term& term) const {
    Sums<sums> total;
    for (std::int64_t i = first(); i < count; i += step()) {
      float value[sums];
      term(i, value);
      for (int s = 0; s < sums; ++s) total.value[s] += value[s];
    }
    for (int s = 0; s < sums; ++s) member_.team_reduce(Kokkos::Sum<double>(total.value[s]));
    return total;
  }
  KOKKOS_FUNCTION bool leads() const { return member_.team_rank() == 0; }

 private:
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
