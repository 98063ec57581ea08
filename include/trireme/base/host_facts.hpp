// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

// Facts about a host that help or hurt a training run. `trireme doctor` reports them.

namespace trireme {

/// Settings and limits of a host, as a process of it sees them. A limit without a value is
/// unlimited.
struct HostFacts {
  std::string name;
  std::string kernel;  ///< release of Linux, "6.1.0-18-amd64"
  int cores = 0;       ///< logical cores of the host, also those that this process may not use
  std::int64_t memory_bytes = 0;                    ///< of the host
  std::int64_t available_memory_bytes = 0;          ///< without memory that other processes hold
  std::optional<std::int64_t> group_memory_bytes;   ///< limit of the control groups
  std::optional<std::int64_t> open_files;           ///< ulimit -S -n
  std::optional<std::int64_t> max_open_files;       ///< ulimit -H -n
  std::optional<std::int64_t> locked_memory_bytes;  ///< ulimit -l
  std::optional<std::int64_t> core_file_bytes;      ///< ulimit -c
  bool has_shared_memory = false;                   ///< /dev/shm is a folder that can be written
  std::int64_t shared_memory_bytes = 0;             ///< size of /dev/shm
  std::int64_t free_shared_memory_bytes = 0;
  /// Setting of transparent huge pages: "always", "madvise" or "never"; empty if unknown.
  std::string huge_pages;
  /// Ports of InfiniBand and RoCE adapters.
  int network_ports = 0, active_network_ports = 0;
  bool has_nvidia_driver = false;  ///< the kernel module of the NVIDIA driver is loaded
};

/// Reads the facts from the system. A fact that cannot be read keeps its initial value. Throws
/// Failure if the name of the host is unknown.
HostFacts examine_host();

/// Returns the logical cores in the affinity mask of this process, in ascending order.
std::vector<int> allowed_cores();

/// Returns the first logical core of the physical core that contains logical core `core`: two cores
/// with the same result are hardware threads of one physical core. Returns `core` itself if the
/// system does not say. `root`: where the folders cpu0, cpu1 ... are.
int physical_core_of(int core, const std::string& root = "/sys/devices/system/cpu");

/// Returns the word in brackets of a text like "always [madvise] never"; empty if there is none.
std::string selected_word(const std::string& text);

}  // namespace trireme
