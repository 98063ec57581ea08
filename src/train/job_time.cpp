#include "trireme/train/job_time.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "trireme/base/clock.hpp"

namespace trireme::train {
namespace {

/// What a command prints, at most 64 KiB; empty where it cannot be run.
std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen((command + " 2>/dev/null").c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> piece{};
  while (pipe && text.size() < (1 << 16)) {
    const std::size_t count = std::fread(piece.data(), 1, piece.size(), pipe.get());
    if (count == 0) break;
    text.append(piece.data(), count);
  }
  return text;
}

/// The job's number, from the environment; none where it could not go into a command line as it is.
std::optional<std::string> job_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value == 0) return std::nullopt;
  const std::string job = value;
  if (job.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-[]") != std::string::npos || job.front() == '-') return std::nullopt;
  return job;
}

/// SLURM_JOB_END_TIME (newer versions of Slurm set it) costs nothing; a limit that was changed since is seen by neither.
std::optional<double> slurm_seconds_left(const std::string& job) {
  if (const char* end = std::getenv("SLURM_JOB_END_TIME")) {
    if (const double seconds = std::atof(end); seconds > 0) return seconds - wall_seconds();
  }
  return seconds_of_clock(output_of("squeue -h -j '" + job + "' -o %L"));
}

/// The value of `key = value` in the lines of `qstat -f`.
std::optional<std::string> field_of(const std::string& text, const std::string& key) {
  const std::size_t at = text.find("    " + key + " = ");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + key.size() + 7;
  return text.substr(begin, text.find('\n', begin) - begin);
}

/// Torque counts Walltime.Remaining itself. PBS has the limit and the start; the time used, which its server hears of every few minutes, comes last.
std::optional<double> pbs_seconds_left(const std::string& job) {
  const std::string text = output_of("LC_ALL=C qstat -f '" + job + "'");
  if (const auto remaining = field_of(text, "Walltime.Remaining")) return std::atof(remaining->c_str());
  const auto walltime = field_of(text, "Resource_List.walltime");
  const std::optional<double> limit = walltime ? seconds_of_clock(*walltime) : std::nullopt;
  if (!limit) return std::nullopt;
  if (const auto start = field_of(text, "stime")) {
    std::tm date{};
    if (strptime(start->c_str(), "%a %b %d %H:%M:%S %Y", &date) != nullptr) {
      date.tm_isdst = -1;
      return *limit - (wall_seconds() - static_cast<double>(std::mktime(&date)));
    }
  }
  const auto used = field_of(text, "resources_used.walltime");
  return *limit - (used ? seconds_of_clock(*used).value_or(0) : 0);
}

/// bjobs prints hours:minutes and a letter: L (a limit), E (an estimate stands, which is none), X (an estimate is over).
std::optional<double> lsf_seconds_left(const std::string& job) {
  int hours = 0, minutes = 0;
  char kind = 0;
  if (std::sscanf(output_of("bjobs -noheader -o time_left '" + job + "'").c_str(), "%d:%d %c", &hours, &minutes, &kind) != 3 || kind != 'L') return std::nullopt;
  return hours * 3600.0 + minutes * 60.0;
}

/// Flux knows by itself which job asks; "inf" or 0 and nothing else where there is no limit.
std::optional<double> flux_seconds_left() {
  const double seconds = std::atof(output_of("flux job timeleft").c_str());
  if (!(seconds > 0) || std::isinf(seconds)) return std::nullopt;
  return seconds;
}

}  // namespace

std::optional<double> seconds_of_clock(const std::string& text) {
  const std::size_t dash = text.find('-');
  const int days = dash == std::string::npos ? 0 : std::atoi(text.c_str());
  int a = 0, b = 0, c = 0;
  const int fields = std::sscanf(text.c_str() + (dash == std::string::npos ? 0 : dash + 1), "%d:%d:%d", &a, &b, &c);
  if (fields < 2) return std::nullopt;
  return days * 86400.0 + (fields == 3 ? a * 3600.0 + b * 60.0 + c : a * 60.0 + b);
}

std::optional<JobTime> job_time() {
  struct System {
    const char *name, *variable;
    std::optional<double> (*seconds_left)(const std::string&);
  };
  for (const System& system : {System{"Slurm job ", "SLURM_JOB_ID", slurm_seconds_left}, System{"PBS job ", "PBS_JOBID", pbs_seconds_left}, System{"LSF job ", "LSB_JOBID", lsf_seconds_left}}) {
    const std::optional<std::string> job = job_in(system.variable);
    if (const std::optional<double> left = job ? system.seconds_left(*job) : std::nullopt) return JobTime{*left, system.name + *job};
  }
  if (std::getenv("FLUX_URI") != nullptr) {
    if (const std::optional<double> left = flux_seconds_left()) return JobTime{*left, "Flux"};
  }
  return std::nullopt;
}

}  // namespace trireme::train
