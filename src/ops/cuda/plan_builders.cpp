// SPDX-License-Identifier: Apache-2.0
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

/// Returns handles of the current device, null from the first one on that cannot be made.
///
/// One after the other: cuDNN was reported to hang when threads made handles at the same time
/// (openxla/xla, pull request 28497).
std::vector<cudnnHandle_t> make_handles(int count) {
  std::vector<cudnnHandle_t> handles(static_cast<std::size_t>(std::max(0, count)), nullptr);
  for (cudnnHandle_t& handle : handles) {
    if (cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS) continue;
    handle = nullptr;
    break;
  }
  return handles;
}

}  // namespace

PlanBuilders::PlanBuilders(Device device, int threads)
    : device_(device), handles_(make_handles(threads - 1)) {}

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
  threads.reserve(handles_.size());
  for (cudnnHandle_t other : handles_) {
    try {
      threads.emplace_back([other, &work_or_keep_error, this, needs_handle = handle != nullptr] {
        if (needs_handle && other == nullptr) return;
        // A thread begins on device 0, where a plan would make a second context.
        if (needs_handle && cudaSetDevice(device_.index) != cudaSuccess) return;
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
