// SPDX-License-Identifier: Apache-2.0
#include "init_timer.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "trireme/base/check.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"
#include "trireme/comm/environment.hpp"

namespace trireme::comm {
namespace {

constexpr const char* variable = "TRIREME_INIT_SECONDS";
// One rank reports for all: each waits a little longer than the rank before it, and the launcher
// ends the others.
constexpr double stagger_seconds = 0.25, max_stagger_seconds = 5;
// Time in which this process itself was suspended does not count.
constexpr double round_seconds = 1;

double seconds_from_environment() {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return max_init_seconds;
  double seconds = 0;
  const char* const end = text + std::strlen(text);
  const auto [stopped, error] = std::from_chars(text, end, seconds);
  validate(error == std::errc() && stopped == end && seconds >= 1 && seconds <= 1e6,
           "environment variable {} = \"{}\": must be a number of seconds from 1 to 1000000",
           variable, printable(text, 60));
  return seconds;
}

}  // namespace

InitTimer::InitTimer(int rank, std::string host)
    : seconds_(seconds_from_environment()),
      rank_(rank),
      host_(std::move(host)),
      thread_([this] { wait(); }) {}

InitTimer::~InitTimer() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void InitTimer::wait() {
  const double limit = seconds_ + std::min(max_stagger_seconds, stagger_seconds * rank_);
  double waited = 0;
  std::unique_lock lock(mutex_);
  while (waited < limit) {
    const double begin = monotonic_seconds();
    const std::chrono::duration<double> round(std::min(round_seconds, limit - waited));
    if (changed_.wait_for(lock, round, [this] { return is_over_; })) return;
    waited += std::min(monotonic_seconds() - begin, 2 * round_seconds);
  }
  fmt::print(stderr,
             "trireme: rank {} on {} waits in MPI_Init since {:.0f} s: another rank was stopped or "
             "lost at its start, or does not reach this host; submit the same command again. {} "
             "sets the limit\n",
             rank_, host_, waited, variable);
  std::fflush(stderr);
  _exit(static_cast<int>(ExitCode::rank_lost));
}

}  // namespace trireme::comm
