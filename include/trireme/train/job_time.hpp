#pragma once

#include <optional>
#include <string>

namespace trireme::train {

/// How long the batch job around this process may still run, and who says so ("Slurm job 17").
struct JobTime {
  double seconds_left;
  std::string source;
};

/// Asks the batch system whose job this process is in: Slurm (SLURM_JOB_END_TIME, else squeue), PBS
/// and Torque (qstat), LSF (bjobs), Flux (flux job timeleft). None outside a job, in a job without
/// a limit, and where the batch system does not answer.
std::optional<JobTime> query_job_time();

/// Seconds of "[days-][hours:]minutes:seconds", Slurm's form and, without days, that of PBS; none
/// where the text is something else (UNLIMITED).
std::optional<double> parse_clock(const std::string& text);

}  // namespace trireme::train
