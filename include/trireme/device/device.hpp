#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace trireme {

/// Where memory is and work runs. `meta` has no storage: ops check shapes and count, allocations
/// are only added up. `emulated`: this host's cores with memory of its own, which the host may not
/// touch (it is protected) but by the calls of stream.hpp: the data take the way that they take to
/// a CUDA device, on a machine that has none. For tests.
enum class DeviceKind : std::uint8_t { meta, cpu, cuda, emulated };

/// Whether its memory is the host's: what has a pointer may read it.
constexpr bool in_host_memory(DeviceKind kind) { return kind == DeviceKind::cpu; }

struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int index = 0;  ///< of the CUDA or emulated device; 0 otherwise
  bool operator==(const Device&) const = default;
};

/// "meta", "cpu", "cuda:0", "emulated:0".
std::string to_string(Device device);

class LaunchGraphs;

/// An ordered queue of work on a device. On the CPU work is done when the call returns and `handle`
/// is null; on CUDA `handle` is the cudaStream_t, on an emulated device its owner's. A small value:
/// copy it freely.
struct Stream {
  Device device;
  void* handle = nullptr;
  LaunchGraphs* graphs = nullptr;  ///< where launches on it may be kept back (launch.hpp); they and
                                   ///< all else are given to it by one thread
};

/// Host memory that copies to and from a device can take beside other work, and without waiting:
/// `pinned`, where a build and machine have such a device.
enum class Pages : std::uint8_t { pageable, pinned };

/// One block of memory on a device, all zero, aligned to 4096 bytes, freed at the end of its life.
/// Meta: size without storage. Large host blocks ask for huge pages. Throws Failure, naming `what`,
/// where the memory is not to be had.
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

/// Where the byte at `address` lies: on the device of the Allocation that it is in, else on the
/// host.
Device device_of(const void* address);

/// Kokkos from construction to destruction: made once in main by the commands that compute. Throws
/// Failure where a CUDA build finds no device.
class KokkosScope {
 public:
  /// `threads`: host threads of this process; 0: OMP_NUM_THREADS, or the cores this process may run
  /// on. `device`: of CUDA, the one on which kernels run, and the calling thread's from now on;
  /// else it says nothing.
  explicit KokkosScope(int threads = 0, Device device = {});
  ~KokkosScope();
  KokkosScope(const KokkosScope&) = delete;
  KokkosScope& operator=(const KokkosScope&) = delete;
  static int threads();
  /// What threads() will be of a scope made without a number: KOKKOS_NUM_THREADS, OMP_NUM_THREADS,
  /// else the cores. Throws InputError for a wrong one.
  static int default_threads();
};

/// Whether this program is one for CUDA devices (preset cuda-release).
bool built_with_cuda();

/// Number of CUDA devices. Where there is none, `why` (if given) gets the reason: no CUDA in this
/// build, no driver, one too old, no device.
int cuda_device_count(std::string* why = nullptr);

/// Cores this process may run on (its affinity mask).
int available_cores();

/// Which ones, as text that is the same where they are: "0,1,5". Empty where the system does not
/// say.
std::string core_list();

}  // namespace trireme
