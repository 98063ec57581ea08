#include "plan_builders.hpp"

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include <cuda_runtime_api.h>

#include "trireme/base/host.hpp"

namespace trireme::ops::cuda {
namespace {

/// Selects the device for this thread, and makes its handle at the first time. Returns false if the
/// device or the library refuses.
bool prepare_thread(Device device, cudnnHandle_t& handle) {
  // A thread begins on device 0, where a handle would make a second context.
  if (cudaSetDevice(device.index) != cudaSuccess) return false;
  if (handle == nullptr && cudnnCreate(&handle) != CUDNN_STATUS_SUCCESS) handle = nullptr;
  return handle != nullptr;
}

}  // namespace

PlanBuilders::PlanBuilders(Device device, int threads)
    : device_(device), handles_(static_cast<std::size_t>(std::max(0, threads - 1)), nullptr) {}

PlanBuilders::~PlanBuilders() {
  for (cudnnHandle_t handle : handles_)
    if (handle != nullptr) cudnnDestroy(handle);
}

int PlanBuilders::default_threads() {
  // Ranks of a node often share its cores, and a problem has few plans that take long to build.
  constexpr int max_threads = 8;
  return std::min(available_cores(), max_threads);
}

void PlanBuilders::run(cudnnHandle_t handle, const std::function<void(cudnnHandle_t)>& work) {
  std::mutex mutex;
  std::exception_ptr error;
  const auto work_or_keep_error = [&](cudnnHandle_t own) {
    try {
      work(own);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  std::vector<std::thread> threads;
  for (cudnnHandle_t& other : handles_) {
    try {
      threads.emplace_back([&other, &work_or_keep_error, this, needs_handle = handle != nullptr] {
        if (needs_handle && !prepare_thread(device_, other)) return;
        work_or_keep_error(needs_handle ? other : nullptr);
      });
    } catch (const std::system_error&) {
      break;  // no more threads are allowed
    }
  }
  work_or_keep_error(handle);
  for (std::thread& thread : threads) thread.join();
  if (error) std::rethrow_exception(error);
}

}  // namespace trireme::ops::cuda
