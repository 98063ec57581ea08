// SPDX-License-Identifier: Apache-2.0
//
// Remaining time of the batch job, from the commands of Slurm, PBS, Torque, LSF and Flux. Called
// once per start by RunClock on world rank 0.
#include "trireme/train/run/job_time.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>

#include <unistd.h>

#include "trireme/base/batch_job.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"

namespace trireme::train {
namespace {

/// Parses a local time in a form of strptime(); nothing if the text does not begin with one.
std::optional<double> local_time(const std::string& text, const char* form) {
  std::tm date{};
  if (strptime(text.c_str(), form, &date) == nullptr) return std::nullopt;
  date.tm_isdst = -1;
  return static_cast<double>(std::mktime(&date));
}

/// SLURM_JOB_END_TIME (set by newer versions of Slurm) needs no program. A time limit that is
/// changed during the run is not noticed.
std::optional<double> slurm_seconds_left(const std::string& job) {
  if (const char* end = std::getenv("SLURM_JOB_END_TIME")) {
    if (const double seconds = std::atof(end); seconds > 0) return seconds - wall_seconds();
  }
  return parse_clock(run_command("squeue -h -j '" + job + "' -o %L"));
}

/// Torque reports Walltime.Remaining. PBS reports the limit and the start. The used time comes
/// last, because the PBS server updates it only every few minutes.
std::optional<double> pbs_seconds_left(const std::string& job) {
  const std::string text = run_command("qstat -f '" + job + "'");
  if (const auto remaining = qstat_field(text, "Walltime.Remaining"))
    return std::atof(remaining->c_str());
  const auto walltime = qstat_field(text, "Resource_List.walltime");
  const std::optional<double> limit = walltime ? parse_clock(*walltime) : std::nullopt;
  if (!limit) return std::nullopt;
  if (const auto start = qstat_field(text, "stime")) {
    if (const auto time = local_time(*start, "%a %b %d %H:%M:%S %Y"))
      return *limit - (wall_seconds() - *time);
  }
  const auto used = qstat_field(text, "resources_used.walltime");
  return *limit - (used ? parse_clock(*used).value_or(0) : 0);
}

/// bjobs prints hours:minutes and a letter: L for a limit, E for an estimate, X for an estimate
/// that is exceeded. Only a limit counts.
std::optional<double> lsf_seconds_left(const std::string& job) {
  int hours = 0, minutes = 0;
  char kind = 0;
  if (std::sscanf(run_command("bjobs -noheader -o time_left '" + job + "'").c_str(), "%d:%d %c",
                  &hours, &minutes, &kind) != 3 ||
      kind != 'L')
    return std::nullopt;
  return hours * 3600.0 + minutes * 60.0;
}

/// Flux identifies the job itself. It prints "inf" or 0 if there is no limit.
std::optional<double> flux_seconds_left() {
  const double seconds = std::atof(run_command("flux job timeleft").c_str());
  if (!(seconds > 0) || std::isinf(seconds)) return std::nullopt;
  return seconds;
}

std::optional<double> seconds_left(const BatchJob& job) {
  switch (job.system) {
    case BatchJob::System::slurm: return slurm_seconds_left(job.id);
    case BatchJob::System::pbs: return pbs_seconds_left(job.id);
    case BatchJob::System::lsf: return lsf_seconds_left(job.id);
    case BatchJob::System::flux: return flux_seconds_left();
  }
  return std::nullopt;
}

}  // namespace

JobStart query_job_start(const std::vector<BatchJob>& jobs) {
  for (const BatchJob& job : jobs) {
    if (job.system != BatchJob::System::slurm) continue;
    std::istringstream answer(
        run_command("env SLURM_TIME_FORMAT=standard squeue -h -j '" + job.id + "' -o '%V %S'"));
    std::string submitted, started;
    answer >> submitted >> started;
    constexpr const char* form = "%Y-%m-%dT%H:%M:%S";
    JobStart times{local_time(submitted, form), local_time(started, form)};
    if (const char* start = std::getenv("SLURM_JOB_START_TIME")) {
      if (const double seconds = std::atof(start); seconds > 0) times.started = seconds;
    }
    return times;
  }
  return {};
}

std::optional<double> parse_clock(const std::string& text) {
  const std::size_t dash = text.find('-');
  const int days = dash == std::string::npos ? 0 : std::atoi(text.c_str());
  int a = 0, b = 0, c = 0;
  const int fields = std::sscanf(text.c_str() + (dash == std::string::npos ? 0 : dash + 1),
                                 "%d:%d:%d", &a, &b, &c);
  if (fields < 2) return std::nullopt;
  return days * 86400.0 + (fields == 3 ? a * 3600.0 + b * 60.0 + c : a * 60.0 + b);
}

std::optional<JobTime> query_job_time() {
  for (const BatchJob& job : batch_jobs()) {
    if (const std::optional<double> left = seconds_left(job)) return JobTime{*left, job.title()};
  }
  return std::nullopt;
}

std::optional<double> parse_job_energy(const std::string& text) {
  // run_command() cuts longer outputs.
  constexpr std::size_t max_bytes = (1 << 16) - 1;
  if (text.size() > max_bytes) return std::nullopt;
  std::optional<double> joules;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    // "4711.0|123": other lines are the job, its batch script and its external step.
    const std::size_t dot = line.find('.'), bar = line.find('|');
    if (dot == std::string::npos || bar == std::string::npos || bar < dot) continue;
    const auto step = parse_integer(std::string_view(line).substr(dot + 1, bar - dot - 1)),
               value = parse_integer(std::string_view(line).substr(bar + 1));
    // Slurm writes 0, or its largest number, if no plugin measures energy.
    constexpr std::int64_t largest = 1'000'000'000'000'000;
    if (step && value && *value > 0 && *value < largest)
      joules = joules.value_or(0) + static_cast<double>(*value);
  }
  return joules;
}

std::optional<double> query_job_energy(const BatchJob& job) {
  if (job.system != BatchJob::System::slurm || job.id.empty()) return std::nullopt;
  return parse_job_energy(
      run_command("timeout 5 sacct --noheader --parsable2 --format JobID,ConsumedEnergyRaw -j '" +
                  job.id + "'"));
}

bool has_whole_node(const std::vector<BatchJob>& jobs) {
  const bool is_slurm = std::any_of(jobs.begin(), jobs.end(), [](const BatchJob& job) {
    return job.system == BatchJob::System::slurm;
  });
  const char* const cores = std::getenv("SLURM_CPUS_ON_NODE");
  return is_slurm && cores != nullptr &&
         parse_integer(cores) == std::int64_t{sysconf(_SC_NPROCESSORS_ONLN)};
}

}  // namespace trireme::train
