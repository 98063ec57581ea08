// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include <sys/types.h>

namespace trireme {

/// A descriptor of this process that a child process gets under another number.
struct ChildDescriptor {
  int here = -1, in_child = -1;
};

/// Starts a process for work that may crash, and returns its id; wait for it with waitpid(). What
/// it writes to standard output and standard error is discarded, unless `descriptors` names them.
///
/// The child ignores the signals of terminals and batch systems, which this process handles. Throws
/// Failure if it cannot be started; `purpose` is named in the message, as in "to read files".
pid_t start_child(const std::vector<std::string>& command_line,
                  std::span<const ChildDescriptor> descriptors, const std::string& purpose);

}  // namespace trireme
