// SPDX-License-Identifier: Apache-2.0
//
// Signal handlers that ask for a stop. A signal asks for a stop from the first moment of a rank on:
//
//   bin/trireme        blocks the signals (src/app/start.cpp) and becomes libexec/trireme
//   dynamic loader     maps the libraries; a signal waits
//   .preinit_array     installs the handlers and unblocks the signals that have one
//   libraries start    a handler notes the signal
//   train()            installs the handlers again, since a library may have replaced them
#include "stop_request.hpp"

#include <csignal>
#include <cstring>
#include <ctime>

#include <sys/stat.h>
#include <unistd.h>

#include "trireme/base/clock.hpp"
#include "trireme/base/run_signals.hpp"

namespace trireme::train {
namespace {

volatile std::sig_atomic_t received = 0;
volatile std::sig_atomic_t received_at =
    0;  // Seconds of the monotonic clock; 32 bits suffice for 68 years of uptime.

bool hangup_is_ignored = false;

void record_stop_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // clock_gettime is async-signal-safe.
  const auto seconds = static_cast<std::sig_atomic_t>(now.tv_sec);
  // srun and mpirun may send one signal twice in quick succession. Only a later repetition ends the
  // process.
  if (received != 0 && (signal == SIGTERM || signal == SIGINT) && seconds - received_at >= 5)
    _exit(128 + signal);
  if (received == 0) {
    received_at = seconds;
    received = signal;
  }
}

void install_handlers() {
  struct sigaction action{};
  action.sa_handler = record_stop_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  if (hangup_is_ignored) action.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &action, nullptr);
}

/// Runs before the constructors of all libraries. Reads how the process was started (nohup ignores
/// SIGHUP). For `trireme train` a signal asks for a stop; other commands end by it. SIGHUP stays
/// blocked until install_stop_signals(): UCX, a dependency of MPI libraries, replaces its handler
/// when it is loaded. SIGUSR2 stays blocked until install_report_signal(). The C library passes the
/// arguments of main().
void prepare_signals(int argc, char** argv, char**) {
  struct sigaction before{};
  hangup_is_ignored = sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
  if (argc < 2 || std::strcmp(argv[1], "train") != 0) return;
  install_handlers();
  unblock({SIGUSR1, SIGTERM, SIGINT});
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit_hook)(int, char**,
                                                                         char**) = prepare_signals;

}  // namespace

void install_stop_signals() {
  install_handlers();
  unblock({SIGHUP});
}

int stop_signal() { return received; }

std::string signal_name(int signal) {
  switch (signal) {
    case SIGUSR1: return "SIGUSR1";
    case SIGTERM: return "SIGTERM";
    case SIGINT: return "SIGINT";
    case SIGHUP: return "SIGHUP";
    default: return "signal " + std::to_string(signal);
  }
}

std::string stop_reason(const StopFile& file, bool time_is_up, const std::string& time_source) {
  return stop_signal() != 0 ? signal_name(stop_signal())
         : file.was_found() ? std::string(io::run_names::stop_file) + " file"
         : time_is_up       ? time_source
                            : "a signal at another rank";
}

bool StopFile::exists() {
  constexpr double seconds_between = 0.5;
  const double now = monotonic_seconds();
  if (looked_at_ >= 0 && now - looked_at_ < seconds_between) return was_found_;
  looked_at_ = now;
  struct stat status{};
  was_found_ = stat(path_.c_str(), &status) == 0;
  return was_found_;
}

}  // namespace trireme::train
