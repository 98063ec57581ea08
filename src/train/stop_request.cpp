#include "trireme/train/stop_request.hpp"

#include <csignal>
#include <ctime>

#include <unistd.h>

namespace trireme::train {
namespace {

volatile std::sig_atomic_t received = 0;
volatile std::sig_atomic_t received_at =
    0;  // seconds of the monotonic clock: fits for 68 years of uptime

bool hangup_is_ignored = false;

/// Of the process as it was started, by nohup for one. Before any library is loaded: UCX, which
/// MPICH brings along, takes the signal for itself as it is loaded.
void read_hangup_action() {
  struct sigaction before{};
  hangup_is_ignored = sigaction(SIGHUP, nullptr, &before) == 0 && before.sa_handler == SIG_IGN;
}
[[gnu::section(".preinit_array"), gnu::used]] void (*const preinit_hook)() = read_hangup_action;

void on_signal(int signal) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
  const auto seconds = static_cast<std::sig_atomic_t>(now.tv_sec);
  // srun and mpirun may send the same signal twice within a moment: only a later one means "at
  // once".
  if (received != 0 && (signal == SIGTERM || signal == SIGINT) && seconds - received_at >= 5)
    _exit(128 + signal);
  if (received == 0) {
    received_at = seconds;
    received = signal;
  }
}

}  // namespace

void install_stop_signals() {
  struct sigaction action{};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (const int signal : {SIGUSR1, SIGTERM, SIGINT}) sigaction(signal, &action, nullptr);
  if (hangup_is_ignored) action.sa_handler = SIG_IGN;
  sigaction(SIGHUP, &action, nullptr);
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

}  // namespace trireme::train
