// SPDX-License-Identifier: Apache-2.0
//
// The job file of `trireme plan --sbatch`: the #SBATCH lines of slurm/train_64nodes.sh with the
// numbers of a plan, and a call of that script, which launches the run and handles signals.
#include "job_file.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "trireme/base/text.hpp"
#include "trireme/plan/costs.hpp"

namespace trireme::app {
namespace {

constexpr double job_limit_seconds = 12 * 3600.0, lost_in_a_job_seconds = 900;

/// Returns the text in single quotes for a shell.
std::string quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text)
    if (c == '\'')
      result += "'\\''";
    else
      result += c;
  return result + "'";
}

/// Returns the time in the form of sbatch: HOURS:MINUTES:SECONDS.
std::string slurm_time(double seconds) {
  const auto minutes = static_cast<std::int64_t>(std::ceil(seconds / 60));
  return fmt::format("{}:{:02}:00", minutes / 60, minutes % 60);
}

std::string header(const JobFile& job, const JobTime& time) {
  const int nodes = plan::nodes_of(job.machine, job.ranks), tasks = (job.ranks + nodes - 1) / nodes;
  std::string text =
      fmt::format("#SBATCH --job-name={}\n#SBATCH --nodes={}\n", job.run_name, nodes);
  // The last node may be filled in part.
  if (job.ranks != nodes * tasks) text += fmt::format("#SBATCH --ntasks={}\n", job.ranks);
  text += fmt::format("#SBATCH --ntasks-per-node={}\n", tasks);
  if (job.machine.device.kind == plan::MachineKind::gpu)
    text += fmt::format("#SBATCH --gpus-per-node={}\n", tasks);
  if (job.machine.node.cores >= tasks)
    text += fmt::format("#SBATCH --cpus-per-task={}\n", job.machine.node.cores / tasks);
  return text + fmt::format(
                    "#SBATCH --exclusive\n#SBATCH --mem=0\n#SBATCH --time={}\n"
                    "#SBATCH --signal=B:USR1@300\n#SBATCH --requeue\n#SBATCH --open-mode=append\n"
                    "#SBATCH --output=%x-%j.out\n",
                    slurm_time(time.seconds));
}

std::string comment(const JobFile& job, const JobTime& time) {
  std::string text = fmt::format(
      "#\n# Written by trireme plan for {} on {}.\n# {}\n# {}\n#\n# Submit it in the folder that "
      "the path of the deck starts from:\n",
      printable(job.deck_path), printable(job.machine.name), job.layout, job.prediction);
  if (time.jobs == 1) {
    text += fmt::format("#   sbatch {}\n", printable(quoted(job.path)));
  } else {
    text += fmt::format(
        "#   TRIREME_JOB={} slurm/chain.sh {} {}\n# A chain of {} jobs at most, because the run {}"
        ".\n",
        printable(quoted(job.path)), time.jobs, printable(quoted(job.deck_path)), time.jobs,
        job.run_seconds ? fmt::format("takes more than {}", slurm_time(job_limit_seconds))
                        : std::string("has no predicted end"));
  }
  return text + "# TRIREME_SLURM names the folder slurm/ if it is not below that folder.\n";
}

}  // namespace

JobTime job_time_for(std::optional<double> run_seconds) {
  if (!run_seconds) return {.seconds = job_limit_seconds, .jobs = 10};
  const double needed = 1.25 * *run_seconds + 600;
  if (needed <= job_limit_seconds) return {.seconds = 60 * std::ceil(needed / 60), .jobs = 1};
  constexpr double max_jobs = 999;  // of slurm/chain.sh
  const double jobs = std::ceil(needed / (job_limit_seconds - lost_in_a_job_seconds));
  return {.seconds = job_limit_seconds, .jobs = static_cast<int>(std::min(jobs, max_jobs))};
}

std::string job_file(const JobFile& job) {
  const JobTime time = job_time_for(job.run_seconds);
  std::string text = "#!/usr/bin/env bash\n" + header(job, time) + comment(job, time);
  text += fmt::format("set -uo pipefail\nexport TRIREME_DECK=${{TRIREME_DECK:-{}}}\nsettings=(",
                      quoted(job.deck_path));
  for (const keys::Override& setting : job.settings)
    text += setting.value ? fmt::format("\n  --set {}", quoted(setting.key + "=" + *setting.value))
                          : fmt::format("\n  --unset {}", quoted(setting.key));
  text += job.settings.empty() ? ")\n" : "\n)\n";
  text +=
      "home=${TRIREME_SLURM:-${SLURM_SUBMIT_DIR:-$PWD}/slurm}\n"
      "# chain.sh names the folder of the job scripts.\n"
      "[ \"${1:-}\" != --home ] || home=$2\n"
      "if [ ! -e \"$home/train_64nodes.sh\" ]; then\n"
      "  echo \"$0: no $home/train_64nodes.sh; let TRIREME_SLURM name the folder slurm/\" >&2\n"
      "  exit 2\n"
      "fi\n"
      "[ -n \"${SLURM_JOB_ID:-}\" ] || exec sbatch \"$0\" \"$@\"\n"
      "exec bash \"$home/train_64nodes.sh\" \"$@\" \"${settings[@]}\"\n";
  return text;
}

}  // namespace trireme::app
