// SPDX-License-Identifier: Apache-2.0
//
// Lets a program that callgrind executes start itself. Loaded by LD_PRELOAD in
// scripts/compare_work.py, which compiles it.
//
// The program starts itself as /proc/self/exe to read files of HDF5. Under callgrind this is
// valgrind's own file, so the path in TRIREME_TEST_PROGRAM takes its place.

#include <cstdlib>
#include <string_view>

#include <dlfcn.h>
#include <spawn.h>

extern "C" int posix_spawn(pid_t* process, const char* path,
                           const posix_spawn_file_actions_t* actions,
                           const posix_spawnattr_t* attributes, char* const words[],
                           char* const variables[]) {
  static const auto next =
      reinterpret_cast<decltype(&posix_spawn)>(::dlsym(RTLD_NEXT, "posix_spawn"));
  if (std::string_view(path) == "/proc/self/exe") path = std::getenv("TRIREME_TEST_PROGRAM");
  return next(process, path, actions, attributes, words, variables);
}
