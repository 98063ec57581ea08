#pragma once

// How a kernel's work is laid over a space. A body is a functor over a run of neighbouring
// elements: on the host one call takes a long run and its inner loop is vectorised; on a device a
// run is one element wide, so that neighbouring threads touch neighbouring elements.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>

#include "execution_space.hpp"

// Before a loop of a device's form: one that is seldom run and shall stay small; one whose turns
// are few and differ, where the compiler thinks otherwise.
#if defined(__CUDA_ARCH__)
#define TRIREME_ROLLED _Pragma("unroll 1")
#define TRIREME_UNROLLED _Pragma("unroll")
#else
#define TRIREME_ROLLED
#define TRIREME_UNROLLED
#endif

namespace trireme::kernels {

/// Whether kernels take their form for the host's cores. With TRIREME_DEVICE_FORM, which is for
/// tests, they take the device's on the host too.
#if defined(TRIREME_DEVICE_FORM)
template <class Space>
constexpr bool on_host = false;
#else
template <class Space>
constexpr bool on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;
#endif

/// Threads of a team of the device's form: `wanted`, a multiple of 32; on the host, in tests, what
/// it has, four at most. Kokkos' own choice would ask the device at each launch.
template <class Space>
int team_threads([[maybe_unused]] const Space& space, int wanted) {
#if defined(TRIREME_DEVICE_FORM)
  if constexpr (Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                                           typename Space::memory_space>::accessible)
    return space.concurrency() < 4 ? space.concurrency() : 4;
#endif
  return wanted;
}
constexpr int default_team_size = 256;

/// A kernel's name on its way to Kokkos: the words where a tool is loaded that hears them, else
/// none. Kokkos before 5.2 takes a std::string by reference, 5.2 makes one of whatever it is given
/// at each launch, which for more than 15 characters would allocate.
struct Label {
  const std::string& text;
  operator std::string() const {
    return Kokkos::Tools::profileLibraryLoaded() ? text : std::string();
  }
};

/// `label` lives as long as the program.
template <class Space, class Functor>
void for_each_index(const Space& space, const std::string& label, std::int64_t count,
                    const Functor& functor) {
  if (count > 0)
    Kokkos::parallel_for(
        Label{label}, Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, count),
        functor);
}

/// A piece on the host: the whole run in one call.
template <class Functor>
struct WholePiece {
  Functor functor;
  KOKKOS_FUNCTION void operator()(std::int64_t piece) const {
    functor(piece, std::int64_t{0}, functor.extent(piece));
  }
};

/// A piece on a device: a team takes it, an element a thread.
template <class Space, class Functor>
struct TeamPiece {
  Functor functor;
  using Member = typename Kokkos::TeamPolicy<Space>::member_type;
  KOKKOS_FUNCTION void operator()(const Member& team) const {
    const std::int64_t piece = team.league_rank(), extent = functor.extent(piece);
    for (std::int64_t i = team.team_rank(); i < extent; i += team.team_size())
      functor(piece, i, i + 1);
  }
};

/// functor(piece, begin, end) over all runs [begin, end) of [0, functor.extent(piece)), for every
/// piece.
template <class Space, class Functor>
void for_each_piece(const Space& space, const std::string& label, std::int64_t pieces,
                    const Functor& functor) {
  if (pieces <= 0) return;
  if constexpr (on_host<Space>) {
    for_each_index(space, label, pieces, WholePiece<Functor>{functor});
  } else {
    Kokkos::parallel_for(Label{label},
                         Kokkos::TeamPolicy<Space>(space, static_cast<int>(pieces),
                                                   team_threads(space, default_team_size)),
                         TeamPiece<Space, Functor>{functor});
  }
}

}  // namespace trireme::kernels
