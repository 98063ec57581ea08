// SPDX-License-Identifier: Apache-2.0
#include "trireme/base/child_process.hpp"

#include <algorithm>
#include <csignal>
#include <cstring>

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/run_signals.hpp"

namespace trireme {

pid_t start_child(const std::vector<std::string>& command_line,
                  std::span<const ChildDescriptor> descriptors, const std::string& purpose) {
  std::vector<char*> arguments;
  for (const std::string& word : command_line) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  for (const ChildDescriptor& each : descriptors)
    posix_spawn_file_actions_adddup2(&actions, each.here, each.in_child);
  // Messages of libraries, and those of the C library about a crash.
  for (const int descriptor : {STDOUT_FILENO, STDERR_FILENO})
    if (std::none_of(descriptors.begin(), descriptors.end(),
                     [&](const ChildDescriptor& each) { return each.in_child == descriptor; }))
      posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_WRONLY, 0);
  // Terminals, mpirun and batch systems send signals to all processes of a rank. These would end
  // the child, which has no handlers. This process handles them.
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : run_signals) sigaddset(&blocked, signal);
  posix_spawnattr_setsigmask(&attributes, &blocked);
  // The limit of processor time, and the end of this process, must end the child.
  sigset_t usual;
  sigemptyset(&usual);
  for (const int signal : {SIGPROF, SIGPIPE}) sigaddset(&usual, signal);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  pid_t process = -1;
  const int error =
      ::posix_spawn(&process, arguments[0], &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  ensure(error == 0, "{}: cannot be started {}: {}", command_line[0], purpose,
         std::strerror(error));
  return process;
}

}  // namespace trireme
