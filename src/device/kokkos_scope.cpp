#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <string>

#include "trireme/base/error.hpp"
#include "trireme/device/device.hpp"

namespace trireme {

KokkosScope::KokkosScope(int threads) {
  if (threads <= 0) {
    const char* wanted = std::getenv("OMP_NUM_THREADS");
    threads = wanted != nullptr && std::atoi(wanted) > 0 ? std::atoi(wanted) : available_cores();
  }
#if defined(KOKKOS_ENABLE_CUDA)
  // Asked first: without a driver Kokkos::initialize ends the process.
  std::string why;
  if (cuda_device_count(&why) == 0)
    throw Failure("no CUDA device: " + why + ". This program was built for CUDA (preset cuda-release) and trains only where there is one, whatever "
                  "run.device says; the program of the preset release trains on the CPU. check, shard, inspect and verify work on this machine");
#endif
#if KOKKOS_VERSION >= 40000
  Kokkos::initialize(Kokkos::InitializationSettings().set_num_threads(threads).set_disable_warnings(true));
#else
  Kokkos::InitArguments arguments;
  arguments.num_threads = threads;
  arguments.disable_warnings = true;
  Kokkos::initialize(arguments);
#endif
}

KokkosScope::~KokkosScope() { Kokkos::finalize(); }

int KokkosScope::threads() {
#if KOKKOS_VERSION >= 40000
  return Kokkos::DefaultHostExecutionSpace().concurrency();
#else
  return Kokkos::DefaultHostExecutionSpace::concurrency();
#endif
}

}  // namespace trireme
