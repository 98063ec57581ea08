// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// The kinds of memory and execution.
/// - meta: no storage. Ops check shapes and count work; allocations only add up bytes. The memory
///   planner uses it.
/// - cpu: the cores and memory of this host.
/// - cuda: an NVIDIA GPU.
/// - emulated: the cores of this host with separate, protected memory. The host may touch it only
///   through stream.hpp, so data take the same path as to a CUDA device. For tests on machines
///   without a GPU.
enum class DeviceKind : std::uint8_t { meta, cpu, cuda, emulated };

/// Returns whether the host may read and write this kind's memory through a pointer.
constexpr bool in_host_memory(DeviceKind kind) { return kind == DeviceKind::cpu; }

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  /// Number of the CUDA or emulated device; 0 for the other kinds.
  int index = 0;
  bool operator==(const Device&) const = default;
};

/// Returns "meta", "cpu", "cuda:0" or "emulated:0".
std::string to_string(Device device);

class LaunchGraphs;

/// An ordered queue of work on a device. On the CPU every call completes its work before it
/// returns. A small value: copy it freely. OwnedStream creates and destroys the queue.
struct Stream {
  Device device;
  /// cpu: null. cuda: the cudaStream_t. emulated: the number from emulated::make_stream().
  void* handle = nullptr;
  /// If set, launches inside a LaunchSection are recorded and may be replayed as a CUDA graph
  /// (launch.hpp). Then only one thread may enqueue work on this stream.
  LaunchGraphs* graphs = nullptr;
};

/// Kinds of host memory. Copies between a device and `pinned` memory are asynchronous and overlap
/// with other work. Without a CUDA device, `pinned` memory is allocated like pageable memory, but
/// the emulated device still delays copies with it.
enum class Pages : std::uint8_t { pageable, pinned };

/// One block of zeroed memory on a device, aligned to 4096 bytes, freed by the destructor. A block
/// on the meta device has a size but no storage. Host blocks of 2 MiB or more request huge pages.
///
/// The constructor throws Failure with `what` in the message if the memory is not available.
/// Freeing CUDA memory waits for the device (cudaFree).
class Allocation {
 public:
  Allocation() = default;
  Allocation(Device device, std::size_t bytes, const std::string& what,
             Pages pages = Pages::pageable);
  ~Allocation();
  Allocation(Allocation&& other) noexcept;
  Allocation& operator=(Allocation&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

 private:
  Device device_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  Pages pages_ = Pages::pageable;
};

/// Returns the device of the Allocation that contains `address`. Returns the CPU for every other
/// address.
Device device_of(const void* address);

/// Initializes Kokkos in the constructor and finalizes it in the destructor. The commands that
/// compute create one in main(). Throws Failure if a CUDA build finds no device.
class KokkosScope {
 public:
  /// `threads`: host threads of this process; 0 selects default_threads(). `device`: if it is a
  /// CUDA device, kernels run on it and the calling thread selects it; other kinds are ignored.
  explicit KokkosScope(int threads = 0, Device device = {});
  ~KokkosScope();
  KokkosScope(const KokkosScope&) = delete;
  KokkosScope& operator=(const KokkosScope&) = delete;
  /// Returns the number of host threads that Kokkos uses. Requires a live KokkosScope.
  static int threads();
  /// Returns the number of threads of a scope that is created without a number: KOKKOS_NUM_THREADS,
  /// else OMP_NUM_THREADS, else available_cores(). Throws InputError if a variable is not a valid
  /// number.
  static int default_threads();
};

/// Returns whether this program was built for CUDA devices (preset cuda-release).
bool built_with_cuda();

/// Returns the number of visible CUDA devices. If it is 0, `why` (unless null) receives the reason:
/// a build without CUDA, no driver, an old driver, or no device.
int cuda_device_count(std::string* why = nullptr);

}  // namespace trireme
