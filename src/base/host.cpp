// SPDX-License-Identifier: Apache-2.0
//
// Facts of this host and process: the name, the cores, the memory that may be used and is used,
// and the namespaces in which process numbers and addresses are unique. They are read from /proc
// and from control groups. Called at the start of a run, for reports, and by the lease.

#include "trireme/base/host.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {

std::string host_name() {
  char name[256] = {};  // HOST_NAME_MAX is 64 on Linux
  ensure(::gethostname(name, sizeof name - 1) == 0,
         "gethostname() failed: the name of this host is unknown");
  return name;
}

std::string kernel_scope(const std::string& kind) {
  std::string boot;
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  if (!std::getline(file, boot)) boot = host_name();
  std::error_code ignored;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/" + kind, ignored).string();
}

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) {
    const int cores = CPU_COUNT(&set);
    if (cores > 0) return cores;
  }
  const unsigned cores = std::thread::hardware_concurrency();
  return cores > 0 ? static_cast<int>(cores) : 1;
}

std::int64_t memory_limit_of_groups(const std::string& groups, const std::string& root) {
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  // A limit of a group holds for the groups in it. "max", or a missing file, is no limit.
  const auto take_limits = [&](std::string folder, const std::string& group, const char* name) {
    std::string path = group == "/" ? "" : group;
    while (true) {
      std::ifstream file(folder + path + "/" + name);
      std::int64_t limit = 0;
      if (file >> limit) least = std::min(least, limit);
      if (path.empty()) return;
      path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  };
  // Lines are NUMBER:CONTROLLERS:GROUP; version 2 has the number 0 and no controllers.
  std::istringstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    if (controllers == ",,") take_limits(root, group, "memory.max");
    if (controllers.find(",memory,") != std::string::npos)
      take_limits(root + "/memory", group, "memory.limit_in_bytes");
  }
  return least;
}

std::int64_t host_memory_bytes() {
  const std::int64_t machine =
      static_cast<std::int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  std::ifstream file("/proc/self/cgroup");
  std::ostringstream groups;
  groups << file.rdbuf();
  return std::min(machine, memory_limit_of_groups(groups.str(), "/sys/fs/cgroup"));
}

std::string core_list() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::string list;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return list;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) list += (list.empty() ? "" : ",") + std::to_string(core);
  }
  return list;
}

std::int64_t resident_bytes() {
  // Pages of the process, and those of them that are resident (man 5 proc).
  std::ifstream file("/proc/self/statm");
  std::int64_t size = 0, resident = 0;
  return file >> size >> resident ? resident * ::sysconf(_SC_PAGESIZE) : 0;
}

double process_age_seconds() {
  // Field 22 is the start in ticks since the boot. The name in parentheses may hold spaces.
  std::ifstream file("/proc/self/stat");
  std::string line;
  timespec now{};
  if (!std::getline(file, line) || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  std::istringstream fields(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::string skipped;
  for (int field = 3; field < 22; ++field) fields >> skipped;
  double ticks = 0;
  if (!(fields >> ticks)) return 0;
  const double since_boot =
      static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  return std::max(0.0, since_boot - ticks / static_cast<double>(::sysconf(_SC_CLK_TCK)));
}

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    // open() returns the smallest free descriptor, which is this stream's. Writing to standard
    // output must fail, so that a command whose answer is lost does not exit with 0.
    if (::fcntl(stream, F_GETFD) < 0)
      (void)::open("/dev/null", stream == STDOUT_FILENO ? O_RDONLY : O_RDWR);
  }
}

}  // namespace trireme
