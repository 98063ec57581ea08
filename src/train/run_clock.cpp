#include "trireme/train/run_clock.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "trireme/base/clock.hpp"

namespace trireme::train {
namespace {

/// Seconds until the end of the Slurm job this process is in: from SLURM_JOB_END_TIME (Slurm 22.05 and newer), else from squeue.
std::optional<double> slurm_seconds_left(const char* job) {
  if (const char* end = std::getenv("SLURM_JOB_END_TIME")) {
    const double seconds = std::atof(end);
    if (seconds > 0) return seconds - wall_seconds();
  }
  for (const char* c = job; *c != 0; ++c) {
    if ((*c < '0' || *c > '9') && *c != '_') return std::nullopt;  // it goes into a command line
  }
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(("squeue -h -j " + std::string(job) + " -o %L 2>/dev/null").c_str(), "r"), pclose);
  std::array<char, 64> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return std::nullopt;
  int days = 0;
  const char* clock = line.data();  // [days-][hours:]minutes:seconds
  if (const char* dash = std::string_view(clock).find('-') != std::string_view::npos ? clock + std::string_view(clock).find('-') : nullptr) {
    days = std::atoi(clock);
    clock = dash + 1;
  }
  int a = 0, b = 0, c = 0;
  const int fields = std::sscanf(clock, "%d:%d:%d", &a, &b, &c);
  if (fields < 2) return std::nullopt;  // UNLIMITED, INVALID
  const double seconds = fields == 3 ? a * 3600.0 + b * 60.0 + c : a * 60.0 + b;
  return days * 86400.0 + seconds;
}

}  // namespace

Interval::Interval(const Duration& every, const StepScale& scale) {
  const double samples_per_step = static_cast<double>(scale.samples_per_step);
  switch (every.unit) {
    case Duration::Unit::seconds: seconds_ = every.value; break;
    case Duration::Unit::steps: steps_ = every.value; break;
    case Duration::Unit::samples: steps_ = every.value / samples_per_step; break;
    case Duration::Unit::epochs: steps_ = every.value * static_cast<double>(scale.samples_per_epoch) / samples_per_step; break;
    case Duration::Unit::tokens: steps_ = every.value / (samples_per_step * static_cast<double>(std::max<std::int64_t>(1, scale.tokens_per_sample))); break;
  }
}

bool Interval::due(std::int64_t step) const {
  if (steps_ <= 0) return false;
  // The small addition keeps a multiple a multiple where the division above rounded.
  const auto passed = [this](std::int64_t s) { return std::floor(static_cast<double>(s) / steps_ + 1e-9); };
  return passed(step) > passed(step - 1);
}

RunClock::RunClock() : started_(monotonic_seconds()) {}

RunClock::RunClock(const RunOptions& options) : started_(monotonic_seconds()), margin_(options.walltime_margin.value) {
  if (options.walltime) {
    end_ = started_ + options.walltime->value;
    source_ = "run.walltime";
  } else if (const char* job = options.walltime_auto ? std::getenv("SLURM_JOB_ID") : nullptr) {
    if (const std::optional<double> left = slurm_seconds_left(job)) {
      end_ = started_ + *left;
      source_ = "Slurm job " + std::string(job);
    }
  }
}

double RunClock::since_start() const { return monotonic_seconds() - started_; }

std::optional<double> RunClock::left() const {
  if (!end_) return std::nullopt;
  return *end_ - monotonic_seconds();
}

bool RunClock::must_stop(double longest_step_seconds, double checkpoint_seconds) const {
  const std::optional<double> seconds = left();
  return seconds && *seconds < longest_step_seconds + checkpoint_seconds + margin_;
}

}  // namespace trireme::train
