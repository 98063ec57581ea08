// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// One job of a batch system: Slurm, PBS, LSF or Flux.
struct BatchJob {
  enum class System { slurm, pbs, lsf, flux };
  System system = System::slurm;
  /// The job's number. It contains only characters that are safe between single quotes in a shell
  /// command. Empty if Flux does not report a number.
  std::string id;

  /// Returns "slurm 4711", the form used in environment.json and in the lease of a run folder.
  std::string text() const;
  /// Returns "Slurm job 4711", the form used in the log.
  std::string title() const;
  /// Parses the output of text(). Returns none for any other text.
  static std::optional<BatchJob> parse(const std::string& text);
};

/// Returns the jobs that contain this process, outermost first. Reads environment variables:
/// - Slurm: SLURM_JOB_ID
/// - PBS and Torque: PBS_JOBID
/// - LSF: LSB_JOBID, with LSB_JOBINDEX in an array
/// - Flux: FLUX_URI selects Flux. The number is the output of `flux getattr jobid` inside an
/// allocation (`flux batch`, `flux alloc`), else FLUX_JOB_ID.
///
/// With Flux this call starts a process, so callers ask once and keep the result.
std::vector<BatchJob> batch_jobs();

/// Returns whether the batch system reports that the job has ended. Runs one or two commands of the
/// batch system and waits up to 20 seconds for each. Returns false if the command does not answer
/// or does not know the job, because the job may belong to another cluster.
bool has_ended(const BatchJob& job);

/// Runs a shell command in the C locale and returns its standard output, at most 64 KiB. Stops the
/// command after 20 seconds. Returns an empty string if the command cannot be run.
std::string run_command(const std::string& command);

/// Returns the value of the line `key = value` in the output of `qstat -f`; none if the key is
/// missing.
std::optional<std::string> qstat_field(const std::string& text, const std::string& key);

}  // namespace trireme
