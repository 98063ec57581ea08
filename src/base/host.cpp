#include "trireme/base/host.hpp"

#include <fcntl.h>
#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme {

std::string host_name() {
  char name[256] = {};  // HOST_NAME_MAX is 64 on Linux
  ensure(::gethostname(name, sizeof name - 1) == 0,
         "gethostname() failed: the name of this host is unknown");
  return name;
}

void open_missing_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) < 0)
      // open() returns the smallest free descriptor, which is this stream's.
      (void)::open("/dev/null", O_RDWR);
  }
}

}  // namespace trireme
