#include "trireme/base/host.hpp"

#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {

std::string host_name() {
  char name[256] = {};  // HOST_NAME_MAX is 64 on Linux
  ensure(::gethostname(name, sizeof name - 1) == 0, "this host's name cannot be had");
  return name;
}

}  // namespace trireme
