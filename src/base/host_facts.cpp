// SPDX-License-Identifier: Apache-2.0
//
// Reads limits, memory, cores and network ports of this host from getrlimit(), /proc and /sys.
//
// `trireme doctor` calls examine_host() once on each node, and allowed_cores() on each rank.

#include "trireme/base/host_facts.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "trireme/base/host.hpp"

namespace trireme {
namespace {

namespace fs = std::filesystem;

struct Limit {
  std::optional<std::int64_t> soft, hard;
};

template <class Resource>  // The type of RLIMIT_... differs between C libraries.
Limit read_limit(Resource resource) {
  const auto value = [](rlim_t limit) {
    return limit == RLIM_INFINITY ? std::nullopt : std::optional(static_cast<std::int64_t>(limit));
  };
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0) return {};
  return {value(limit.rlim_cur), value(limit.rlim_max)};
}

std::string first_line(const std::string& path) {
  std::string line;
  std::ifstream file(path);
  std::getline(file, line);
  return line;
}

/// Returns a line "MemAvailable:   1234 kB" of /proc/meminfo in bytes; 0 if it is missing.
std::int64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    long long kilobytes = 0;
    if (std::sscanf(line.c_str(), "MemAvailable: %lld kB", &kilobytes) == 1)
      return static_cast<std::int64_t>(kilobytes) * 1024;
  }
  return 0;
}

void examine_shared_memory(HostFacts& facts) {
  const char* const folder = "/dev/shm";
  struct statvfs status{};
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || ::access(folder, W_OK | X_OK) != 0 ||
      ::statvfs(folder, &status) != 0)
    return;
  const auto bytes = [&status](auto blocks) {
    return static_cast<std::int64_t>(blocks) * static_cast<std::int64_t>(status.f_frsize);
  };
  facts.has_shared_memory = true;
  facts.shared_memory_bytes = bytes(status.f_blocks);
  facts.free_shared_memory_bytes = bytes(status.f_bavail);
}

void count_network_ports(HostFacts& facts) {
  std::error_code ignored;
  for (const auto& adapter : fs::directory_iterator("/sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(adapter.path() / "ports", ignored)) {
      ++facts.network_ports;
      // "4: ACTIVE"
      if (first_line(port.path() / "state").find("ACTIVE") != std::string::npos)
        ++facts.active_network_ports;
    }
  }
}

std::optional<std::int64_t> group_memory() {
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream groups;
  groups << file.rdbuf();
  const std::int64_t limit = memory_limit_of_groups(groups.str(), "/sys/fs/cgroup");
  // Version 1 reports a group without a limit as a number of pages near 2^63.
  constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 2;
  return limit < unlimited ? std::optional(limit) : std::nullopt;
}

}  // namespace

HostFacts examine_host() {
  HostFacts facts;
  facts.name = host_name();
  utsname system{};
  if (::uname(&system) == 0) facts.kernel = system.release;
  facts.cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  facts.memory_bytes =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  facts.available_memory_bytes = available_memory();
  facts.group_memory_bytes = group_memory();
  const Limit files = read_limit(RLIMIT_NOFILE);
  facts.open_files = files.soft;
  facts.max_open_files = files.hard;
  facts.locked_memory_bytes = read_limit(RLIMIT_MEMLOCK).soft;
  facts.core_file_bytes = read_limit(RLIMIT_CORE).soft;
  examine_shared_memory(facts);
  facts.huge_pages = selected_word(first_line("/sys/kernel/mm/transparent_hugepage/enabled"));
  count_network_ports(facts);
  std::error_code ignored;
  facts.has_nvidia_driver = fs::exists("/proc/driver/nvidia/version", ignored);
  return facts;
}

std::vector<int> allowed_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  return cores;
}

int physical_core_of(int core, const std::string& root) {
  // The file has a list such as "3,67" or "6-7", in ascending order.
  int first = core;
  std::ifstream file(root + "/cpu" + std::to_string(core) + "/topology/thread_siblings_list");
  return file >> first ? first : core;
}

std::string selected_word(const std::string& text) {
  const std::size_t begin = text.find('['), end = text.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return "";
  return text.substr(begin + 1, end - begin - 1);
}

}  // namespace trireme
