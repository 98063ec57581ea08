#include "trireme/base/host.hpp"

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

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0)
      // open() returns the smallest free descriptor, which is this stream's.
      (void)::open("/dev/null", O_RDWR);
  }
}

}  // namespace trireme
