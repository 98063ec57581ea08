// SPDX-License-Identifier: Apache-2.0
//
// bin/trireme: holds the signals of a run back while its libraries are loaded, and becomes
// libexec/trireme.
//
// The dynamic loader takes 1 to 8 ms for the libraries of libexec/trireme before a handler can be
// installed, and a signal at that time would kill the rank. Handlers are lost at an exec; blocked
// signals are not: they wait until src/train/run/stop_request.cpp has installed the handlers and
// unblocks them. This program is static where the system has static libraries. Arguments,
// environment and descriptors are left as they are.
//
// A stack that is too small would end the libraries by a signal before they can print a reason, so
// it is refused here.

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "trireme/base/run_signals.hpp"

namespace {

constexpr char own_path[] = "/proc/self/exe";
constexpr char program[] = "/libexec/trireme";

/// Returns the signals of a run as the system has them: bit n - 1 is signal n.
constexpr std::uint64_t bits_of_run_signals() {
  std::uint64_t bits = 0;
  for (const int signal : trireme::run_signals) bits |= std::uint64_t{1} << (signal - 1);
  return bits;
}

// 256 KiB is enough for all commands. The default of Linux is 8 MiB.
constexpr rlim_t min_stack_kib = 256;

/// Prints why the program could not be started, and returns the exit code of a failure.
int fail(const char* path, int error) {
  const bool is_missing = error == ENOENT || error == ENOTDIR;
  std::fprintf(stderr, "trireme: error: %s: cannot be started: %s%s\n", path, std::strerror(error),
               is_missing ? "; bin/trireme needs libexec/trireme of the same installation" : "");
  return 1;
}

}  // namespace

extern "C" {
std::uint64_t trireme_run_signals = bits_of_run_signals();
std::uint64_t trireme_signals_before = 0;
}

#if defined(TRIREME_EARLY_ENTRY)
// The first instructions of the process block the signals: the C library takes 0.1 ms before
// main().
asm(R"(
  .text
  .globl trireme_entry
trireme_entry:
  movl $14, %eax                            # rt_sigprocmask(
  xorl %edi, %edi                           #   SIG_BLOCK,
  leaq trireme_run_signals(%rip), %rsi      #   &trireme_run_signals,
  leaq trireme_signals_before(%rip), %rdx   #   &trireme_signals_before,
  movl $8, %r10d                            #   8)
  syscall
  xorl %edx, %edx                           # as at the start: no function to call at the end
  jmp _start
)");
#endif

int main(int argc, char** argv) {
  // 1. Block the signals of a run. Other commands end by them.
#if !defined(TRIREME_EARLY_ENTRY)
  syscall(SYS_rt_sigprocmask, SIG_BLOCK, &trireme_run_signals, &trireme_signals_before,
          sizeof trireme_signals_before);
#endif
  if (argc < 2 || std::strcmp(argv[1], "train") != 0)
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &trireme_signals_before, nullptr,
            sizeof trireme_signals_before);
  // 2. Refuse a stack that is too small.
  rlimit stack{};
  if (getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur / 1024 < min_stack_kib) {
    std::fprintf(
        stderr,
        "trireme: error: the stack is limited to %llu KiB (`ulimit -s`), but at least %llu "
        "KiB are needed; raise it, as with `ulimit -s 8192`\n",
        static_cast<unsigned long long>(stack.rlim_cur / 1024),
        static_cast<unsigned long long>(min_stack_kib));
    return 1;
  }
  // 3. Find the program: ../libexec/trireme as seen from the folder of this file.
  char path[PATH_MAX + sizeof program];
  const ssize_t length = readlink(own_path, path, PATH_MAX);
  if (length < 0) return fail(own_path, errno);
  char* end = path + length;
  for (int parts = 0; parts < 2; ++parts) {
    while (end != path && *--end != '/') {
    }
  }
  std::copy_n(program, sizeof program, end);
  // 4. Become it.
  execv(path, argv);
  return fail(path, errno);
}
