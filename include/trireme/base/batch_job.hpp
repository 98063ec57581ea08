#pragma once

#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// A job of a batch system.
struct BatchJob {
  enum class System { slurm, pbs, lsf, flux };
  System system = System::slurm;
  std::string id;  ///< only of characters that may stand in a command line between ''; empty where
                   ///< Flux does not tell it

  /// "slurm 4711", as environment.json and the lease of a run folder have it.
  std::string text() const;
  /// "Slurm job 4711", for the log.
  std::string title() const;
  /// The job of a text(); none where the text is something else.
  static std::optional<BatchJob> parse(const std::string& text);
};

/// The jobs that this process is in, outermost first: of Slurm (SLURM_JOB_ID), PBS and Torque
/// (PBS_JOBID), LSF (LSB_JOBID, with LSB_JOBINDEX in an array) and Flux (FLUX_URI; `flux getattr
/// jobid` in an allocation of `flux batch` or `flux alloc`, else FLUX_JOB_ID).
std::vector<BatchJob> batch_jobs();

/// Whether the batch system says that the job is over. False also where it does not answer within
/// seconds or knows no such job, which may be another cluster's.
bool has_ended(const BatchJob& job);

/// What a command of a batch system prints in the C locale, at most 64 KiB; empty where it cannot
/// be run.
std::string run_command(const std::string& command);

/// The value of `key = value` in the lines of `qstat -f`.
std::optional<std::string> qstat_field(const std::string& text, const std::string& key);

}  // namespace trireme
