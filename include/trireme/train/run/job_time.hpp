// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "trireme/base/batch_job.hpp"

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

/// When the batch job of this process was submitted and started, in seconds since 1970-01-01 UTC.
struct JobStart {
  std::optional<double> submitted, started;
};

/// Asks Slurm for the start of the first Slurm job of batch_jobs(): SLURM_JOB_START_TIME, and
/// squeue for what it does not say. Starts a program and waits for it, so call it once. Returns
/// nothing without such a job, and for what Slurm does not answer.
JobStart query_job_start(const std::vector<BatchJob>& jobs);

/// Parses "[days-][hours:]minutes:seconds", the form of Slurm and (without days) of PBS, to
/// seconds. Returns nothing for other text (UNLIMITED).
std::optional<double> parse_clock(const std::string& text);

/// Returns the joules of the steps of a Slurm job that have ended: of all its nodes, whoever used
/// them. None if Slurm does not measure energy. `text`: from
/// `sacct --noheader --parsable2 --format JobID,ConsumedEnergyRaw`.
std::optional<double> parse_job_energy(const std::string& text);
/// The energy of a job, "slurm 4711".
struct JobEnergy {
  std::string job;
  double joules = 0;
};
/// Asks sacct for it, at most 5 s. None for another batch system.
std::optional<double> query_job_energy(const BatchJob& job);

/// Returns whether the batch system has given the job all cores of this host, by
/// SLURM_CPUS_ON_NODE; false if it does not say so.
bool has_whole_node(const std::vector<BatchJob>& jobs);

}  // namespace trireme::train
