// SPDX-License-Identifier: Apache-2.0
//
// Starts and ends Kokkos, and chooses its number of threads. The only source of src/device that
// includes Kokkos.
#include <Kokkos_Core.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "trireme/base/error.hpp"
#include "trireme/base/host.hpp"
#include "trireme/device/device.hpp"
#include "trireme/device/device_facts.hpp"
#include "trireme/device/versions.hpp"

#if defined(KOKKOS_ENABLE_CUDA)
#include "cuda.hpp"
#endif

namespace trireme {

namespace {

/// Reads a number of threads from an environment variable; from a list it takes the first. Returns
/// 0 if the variable is not set. Throws InputError for a wrong number: OpenMP and Kokkos would
/// abort or silently use another number.
int threads_from_environment(const char* variable, bool may_be_list) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return 0;
  std::string text(value);
  if (may_be_list) text.resize(std::min(text.find(','), text.size()));
  text.erase(0, text.find_first_not_of(' '));
  text.erase(text.find_last_not_of(' ') + 1);
  if (text.empty() && *value == '\0') return 0;
  const int max_threads = std::max(64, 4 * static_cast<int>(std::thread::hardware_concurrency()));
  int threads = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), threads);
  if (error != std::errc{} || end != text.data() + text.size() || threads < 1 ||
      threads > max_threads)
    throw InputError(
        std::string("environment variable ") + variable + " = \"" + value +
        "\" is not a valid number of threads for this machine; set an integer from 1 to " +
        std::to_string(max_threads) + ", or unset the variable");
  return threads;
}

}  // namespace

namespace {

/// Starts and ends so many threads. Throws Failure if that is not possible: libgomp would end the
/// process without saying which limit it met.
void try_threads(int threads) {
  std::vector<std::thread> started;
  std::mutex mutex;
  std::string reason;
  {
    const std::lock_guard lock(mutex);  // no thread ends before the last one runs
    try {
      for (int i = 1; i < threads; ++i)
        started.emplace_back([&mutex] { const std::lock_guard wait(mutex); });
    } catch (const std::system_error& error) {
      reason = thread_error_text(error.what());
    }
  }
  for (std::thread& thread : started) thread.join();
  if (!reason.empty()) throw Failure(reason);
}

}  // namespace

KokkosScope::KokkosScope(int threads, [[maybe_unused]] Device device) {
  // Kokkos refuses a number of threads that differs from its own variable, so the variable has
  // priority.
  const int default_count = default_threads();
  if (threads <= 0 || threads_from_environment("KOKKOS_NUM_THREADS", false) > 0)
    threads = default_count;
#if defined(KOKKOS_ENABLE_CUDA)
  // Check first: without a driver Kokkos::initialize aborts the process.
  std::string why;
  if (cuda_device_count(&why) == 0)
    throw Failure(
        "no CUDA device: " + why +
        ". This program was built for CUDA (preset cuda-release) and cannot "
        "train without a device, whatever "
        "run.device is; use the program of the preset release to train on the CPU. check, "
        "shard, inspect and verify work on this machine");
  if (device.kind == DeviceKind::cuda && cuda::select_device(device.index) != cudaSuccess)
    throw Failure("the device " + to_string(device) + " cannot be used");
#endif
  try_threads(threads);
#if KOKKOS_VERSION >= 40000
  Kokkos::InitializationSettings settings;
  settings.set_num_threads(threads).set_disable_warnings(true);
  if (device.kind == DeviceKind::cuda) settings.set_device_id(device.index);
  Kokkos::initialize(settings);
#else
  Kokkos::InitArguments arguments;
  arguments.num_threads = threads;
  arguments.disable_warnings = true;
  // Otherwise Kokkos selects a device by its own rule.
  if (device.kind == DeviceKind::cuda) arguments.device_id = device.index;
  Kokkos::initialize(arguments);
#endif
#if defined(KOKKOS_ENABLE_CUDA)
  // Kokkos sets a preference for shared memory. Kernels of other libraries have none, and a device
  // may wait between kernels of different preferences.
  cuda::check(cudaDeviceSetCacheConfig(cudaFuncCachePreferNone), "resetting the cache preference");
#endif
}

KokkosScope::~KokkosScope() {
  if (!device_has_failed()) Kokkos::finalize();
}

int KokkosScope::default_threads() {
  const int openmp = threads_from_environment("OMP_NUM_THREADS", true),
            kokkos = threads_from_environment("KOKKOS_NUM_THREADS", false);
  return kokkos > 0 ? kokkos : openmp > 0 ? openmp : available_cores();
}

int KokkosScope::threads() {
#if KOKKOS_VERSION >= 40000
  return Kokkos::DefaultHostExecutionSpace().concurrency();
#else
  return Kokkos::DefaultHostExecutionSpace::concurrency();
#endif
}

std::string kokkos_version() {
  constexpr int patch = KOKKOS_VERSION % 100;  // Two digits in the names of releases.
  return std::to_string(KOKKOS_VERSION / 10000) + "." + std::to_string(KOKKOS_VERSION / 100 % 100) +
         (patch < 10 ? ".0" : ".") + std::to_string(patch);
}

}  // namespace trireme
