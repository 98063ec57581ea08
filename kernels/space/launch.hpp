// SPDX-License-Identifier: Apache-2.0
#pragma once

// How kernels distribute work over an execution space. A body is a functor over a range of
// neighboring elements.
//
//   host     one call takes a long range; its inner loop is vectorized
//   device   one call takes one element, so that neighboring threads access neighboring elements
//
// Kernels with both forms choose by on_host<Space> at compile time. Tests run the device form on
// the host with TRIREME_DEVICE_FORM.

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <string>
#include <type_traits>

#include "execution_space.hpp"

// Loop hints for device code. TRIREME_ROLLED: a loop that rarely runs and must stay small.
// TRIREME_UNROLLED: a loop with few, different iterations that the compiler would not unroll.
#if defined(__CUDA_ARCH__)
#define TRIREME_ROLLED _Pragma("unroll 1")
#define TRIREME_UNROLLED _Pragma("unroll")
#else
#define TRIREME_ROLLED
#define TRIREME_UNROLLED
#endif

namespace trireme::kernels {

/// True if kernels for this space use the host form. TRIREME_DEVICE_FORM (tests only) selects the
/// device form on the host too.
#if defined(TRIREME_DEVICE_FORM)
template <class Space>
constexpr bool on_host = false;
#else
template <class Space>
constexpr bool on_host =
    Kokkos::SpaceAccessibility<Kokkos::HostSpace, typename Space::memory_space>::accessible;
#endif

/// Returns the threads per team of the device form: `wanted`, a multiple of 32. In tests on the
/// host it returns the number of host threads, at most 4.
/// Kokkos' own choice would query the device in each launch.
template <class Space>
int team_threads([[maybe_unused]] const Space& space, int wanted) {
#if defined(TRIREME_DEVICE_FORM)
  if constexpr (Kokkos::SpaceAccessibility<Kokkos::HostSpace,
                                           typename Space::memory_space>::accessible)
    return space.concurrency() < 4 ? space.concurrency() : 4;
#endif
  return wanted;
}
/// Default threads per team.
constexpr int default_team_size = 256;

/// Name of a kernel for Kokkos: the text if a profiling tool is loaded, else empty.
/// Kokkos before 5.2 takes a std::string by reference. Kokkos 5.2 constructs one per launch, which
/// allocates if it has more than 15 characters.
struct Label {
  const std::string& text;
  operator std::string() const {
    return Kokkos::Tools::profileLibraryLoaded() ? text : std::string();
  }
};

/// Throws Failure if a kernel with this label could not be launched in this space. Launches on the
/// host always succeed.
template <class Space>
void check_launch_on([[maybe_unused]] const std::string& label) {
#if defined(KOKKOS_ENABLE_CUDA)
  if constexpr (std::is_same_v<Space, Kokkos::Cuda>) check_launch(label);
#endif
}

/// Enqueues a kernel: Kokkos::parallel_for with a policy of any kind. Every kernel is launched by
/// this function, enqueue_scan() or for_each_block() (block_group.hpp). `label` must live as long
/// as the program. Throws Failure if the device refused the launch.
template <class Policy, class Functor>
void enqueue(const std::string& label, const Policy& policy, const Functor& functor) {
  Kokkos::parallel_for(Label{label}, policy, functor);
  check_launch_on<typename Policy::execution_space>(label);
}

/// Enqueues a Kokkos::parallel_scan, like enqueue().
template <class Policy, class Functor>
void enqueue_scan(const std::string& label, const Policy& policy, const Functor& functor) {
  Kokkos::parallel_scan(Label{label}, policy, functor);
  check_launch_on<typename Policy::execution_space>(label);
}

/// Enqueues functor(index) for every index in [0, count). `label` must live as long as the program.
/// On the host a single index, such as the only row in text generation, runs without the threads.
template <class Space, class Functor>
void for_each_index(const Space& space, const std::string& label, std::int64_t count,
                    const Functor& functor) {
  if constexpr (on_host<Space>) {
    if (count == 1 && !Kokkos::Tools::profileLibraryLoaded()) return functor(std::int64_t{0});
  }
  if (count > 0)
    enqueue(label, Kokkos::RangePolicy<Space, Kokkos::IndexType<std::int64_t>>(space, 0, count),
            functor);
}

/// Host form of a piece: one call takes the whole range.
template <class Functor>
struct WholePiece {
  Functor functor;
  KOKKOS_FUNCTION void operator()(std::int64_t piece) const {
    functor(piece, std::int64_t{0}, functor.extent(piece));
  }
};

/// Device form of a piece: a team takes it, one element per thread.
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

/// Enqueues functor(piece, begin, end) over ranges [begin, end) that cover [0,
/// functor.extent(piece)), for every piece in [0, pieces).
template <class Space, class Functor>
void for_each_piece(const Space& space, const std::string& label, std::int64_t pieces,
                    const Functor& functor) {
  if (pieces <= 0) return;
  if constexpr (on_host<Space>) {
    for_each_index(space, label, pieces, WholePiece<Functor>{functor});
  } else {
    enqueue(label,
            Kokkos::TeamPolicy<Space>(space, static_cast<int>(pieces),
                                      team_threads(space, default_team_size)),
            TeamPiece<Space, Functor>{functor});
  }
}

}  // namespace trireme::kernels
