#include "append_file.hpp"

#include <cerrno>
#include <cstring>

#include <unistd.h>

#include "trireme/base/check.hpp"

namespace trireme::monitor {

void append(int file, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    ensure(written > 0, "cannot write {} bytes to {}: {}", bytes.size(), path, written < 0 ? std::strerror(errno) : "the system takes none");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace trireme::monitor
