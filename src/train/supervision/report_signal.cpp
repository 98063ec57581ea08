// SPDX-License-Identifier: Apache-2.0
//
// The handler of SIGUSR2 and its event descriptor, on which the watchdog's thread waits.
#include "report_signal.hpp"

#include <cerrno>
#include <csignal>
#include <cstdint>

#include <sys/eventfd.h>
#include <unistd.h>

#include "trireme/base/run_signals.hpp"

namespace trireme::train {
namespace {

// Global, because a signal handler has no other access to it.
volatile std::sig_atomic_t descriptor = -1;

void request_report(int) {
  const int saved_errno = errno;
  const std::uint64_t one = 1;
  (void)!::write(descriptor, &one, sizeof one);  // write() is async-signal-safe.
  errno = saved_errno;
}

}  // namespace

void install_report_signal() {
  if (descriptor < 0) descriptor = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  struct sigaction action{};
  action.sa_handler = request_report;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR2, &action, nullptr);
  unblock({SIGUSR2});
}

int report_descriptor() { return descriptor; }

bool take_report_request() {
  eventfd_t count = 0;
  return descriptor >= 0 && ::eventfd_read(descriptor, &count) == 0;
}

}  // namespace trireme::train
