// SPDX-License-Identifier: Apache-2.0
#include "trireme/monitor/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"

namespace trireme::monitor {
namespace {

// Faster updates cannot be read and cost time on a slow connection.
constexpr double min_seconds_between = 0.1;
constexpr const char* clear_line = "\r\033[K";

/// Cuts the line to the width of the terminal. A longer line would wrap, and "\r" would then clear
/// only its last row.
std::string cut_to_terminal(std::string line) {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1)
    line.resize(std::min<std::size_t>(line.size(), size.ws_col - 1));
  return line;
}

std::string format_rate(double per_second) {
  return per_second < 100 ? fmt::format("{:.1f}", per_second) : fmt::format("{:.0f}", per_second);
}

}  // namespace

std::string progress_line(const Progress::State& state) {
  std::string line = fmt::format("step {}", state.step);
  if (state.total_steps > 0) line += fmt::format("/{}", state.total_steps);
  line += fmt::format(", epoch {:.2f}", state.epoch);
  if (state.total_epochs > 0) line += fmt::format("/{:.4g}", state.total_epochs);
  line += std::isnan(state.loss) ? ", loss -" : fmt::format(", loss {:.4f}", state.loss);
  if (state.accuracy >= 0) line += fmt::format(", accuracy {:.2f} %", 100 * state.accuracy);
  if (state.per_second > 0)
    line +=
        fmt::format(", {} {}/s", format_rate(state.per_second), state.tokens ? "tokens" : "images");
  if (state.seconds_left >= 0) line += fmt::format(", {} left", format_seconds(state.seconds_left));
  if (state.flops_per_s > 0) line += fmt::format(", {}/s a rank", format_flops(state.flops_per_s));
  if (state.mfu >= 0) line += fmt::format(", MFU {:.1f} %", 100 * state.mfu);
  return line;
}

Progress::Progress(Log& log, bool enabled, std::int64_t every_steps)
    : log_(log),
      enabled_(enabled),
      terminal_(::isatty(STDERR_FILENO) == 1),
      every_steps_(std::max<std::int64_t>(1, every_steps)) {}

Progress::~Progress() { clear(); }

void Progress::show(const State& state) {
  if (!enabled_) return;
  const bool last = state.total_steps > 0 && state.step == state.total_steps;
  if (!terminal_) {
    const bool due = last_step_ < 0 ? state.step % every_steps_ == 0
                                    : state.step / every_steps_ > last_step_ / every_steps_;
    last_step_ = state.step;
    if (due || last) log_.info("{}", progress_line(state));
    return;
  }
  const double now = monotonic_seconds();
  if (last_step_ >= 0 && !last && now - last_shown_ < min_seconds_between) return;
  last_step_ = state.step;
  last_shown_ = now;
  line_shown_ = true;
  log_.set_progress_active(true);
  const std::string text = clear_line + cut_to_terminal(progress_line(state));
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

void Progress::clear() {
  if (!line_shown_) return;
  line_shown_ = false;
  log_.set_progress_active(false);
  std::fputs(clear_line, stderr);
  std::fflush(stderr);
}

}  // namespace trireme::monitor
