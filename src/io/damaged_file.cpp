// SPDX-License-Identifier: Apache-2.0
#include "trireme/io/damaged_file.hpp"

#include "trireme/io/file.hpp"

namespace trireme::io {

void keep_as_damaged(const std::string& path, const std::string& why, Log& log) {
  log.warn("{}; it is kept as {}", why, rename_aside(path, damaged_suffix));
}

}  // namespace trireme::io
