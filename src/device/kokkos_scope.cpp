#include <Kokkos_Core.hpp>

#include <cstdlib>
#include <string>

#include "trireme/device/device.hpp"

namespace trireme {

KokkosScope::KokkosScope(int threads) {
  if (threads <= 0) {
    const char* wanted = std::getenv("OMP_NUM_THREADS");
    threads = wanted != nullptr && std::atoi(wanted) > 0 ? std::atoi(wanted) : available_cores();
  }
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
