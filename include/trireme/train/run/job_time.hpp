// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace trireme::train {

/// The remaining time of the batch job that this process runs in, and its source ("Slurm job 17").
struct JobTime {
  double seconds_left;
  std::string source;
};

/// Asks the batch system for the remaining time of this process's job: Slurm (SLURM_JOB_END_TIME,
/// else squeue), PBS and Torque (qstat), LSF (bjobs), Flux (flux job timeleft).
///
/// Starts a program and waits for it, so call it once. Returns nothing outside a job, in a job
/// without a limit, and if the batch system does not answer.
std::optional<JobTime> query_job_time();

/// Parses "[days-][hours:]minutes:seconds", the form of Slurm and (without days) of PBS, to
/// seconds. Returns nothing for other text (UNLIMITED).
std::optional<double> parse_clock(const std::string& text);

}  // namespace trireme::train
