// SPDX-License-Identifier: Apache-2.0
//
// Findings of `trireme doctor` about the job, and the order of all findings. Pure functions of the
// facts, which tests call with facts of machines that do not exist.

#include "doctor_findings.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "trireme/base/text.hpp"

namespace trireme::app {
namespace {

using Status = Finding::Status;
using Harm = Finding::Harm;

// The default of run.walltime_margin: a run stops this long before the end of its job.
constexpr double walltime_margin = 300;
// Below it a job has hardly time for its start and a checkpoint.
constexpr double short_time = 900;

Finding find_in_launch(const JobFacts& job, const std::vector<NodeFacts>& nodes) {
  const bool is_slurm = job.launcher.starts_with("srun");
  if (job.world_size < job.launched_processes)
    return problem(
        Harm::start, "launcher",
        fmt::format("{} started {} processes, but MPI sees a world of {}",
                    is_slurm ? "srun" : "the launcher", job.launched_processes, job.world_size),
        "train exits with 2, since every process would train by itself",
        is_slurm ? "srun --mpi=list, then srun --mpi=pmix (Open MPI) or srun "
                   "--mpi=pmi2 (MPICH)"
                 : "start with the mpirun of the MPI library that the program is "
                   "linked with (ldd libexec/trireme)");
  if (job.world_size == 1 && job.tasks_of_job > 1 && job.launcher == "none")
    return warning(
        Harm::none, "launcher",
        fmt::format("this job has {} tasks, but one process examines one node", job.tasks_of_job),
        "problems of the launcher and of other nodes are not seen", "srun trireme doctor");
  return ok("launcher",
            fmt::format("{} on {}, launcher: {}, MPI: {}", counted(job.world_size, "rank", "ranks"),
                        counted(static_cast<std::int64_t>(nodes.size()), "node", "nodes"),
                        job.launcher, nodes.empty() ? "none" : nodes.front().versions.mpi));
}

Finding find_in_thread_level(const JobFacts& job) {
  if (job.world_size == 1) return ok("MPI threads", "not needed by one rank");
  if (job.thread_multiple) return ok("MPI threads", "MPI_THREAD_MULTIPLE");
  return warning(Harm::speed, "MPI threads",
                 "MPI does not permit calls of several threads (MPI_THREAD_MULTIPLE)",
                 "gradients are sent between computations, not during them",
                 "export MPICH_MAX_THREAD_SAFETY=multiple (Cray), MV2_ENABLE_AFFINITY=0 "
                 "(MVAPICH2), or an MPI library built with threads");
}

Finding find_in_time(const JobFacts& job) {
  if (job.batch_job.empty()) return ok("time", "no batch job, so no limit");
  if (!job.seconds_left)
    return warning(Harm::loss, "time", job.batch_job + " does not report its remaining time",
                   "if it has a limit, the run may be killed without a last checkpoint",
                   "set run.walltime in the deck, as in --set run.walltime=\"12 hours\"");
  const std::string found =
      fmt::format("{}: {} left", job.batch_job, format_seconds(std::max(0.0, *job.seconds_left)));
  const std::string remedy = "sbatch --time=12:00:00, or a smaller run.walltime_margin";
  if (*job.seconds_left <= walltime_margin)
    return problem(Harm::start, "time", found,
                   "run.walltime_margin (5 minutes) leaves no time for a step", remedy);
  if (*job.seconds_left < short_time)
    return warning(Harm::loss, "time", found, "run.walltime_margin (5 minutes) takes much of it",
                   remedy);
  return ok("time", found);
}

}  // namespace

std::string limit_text(const std::optional<std::int64_t>& limit) {
  return limit ? std::to_string(*limit) : "unlimited";
}

Finding ok(const std::string& subject, const std::string& found) {
  return {Status::ok, Harm::none, subject, found, "", "", {}};
}

Finding warning(Harm harm, const std::string& subject, const std::string& found,
                const std::string& hurts, const std::string& remedy) {
  return {Status::warning, harm, subject, found, hurts, remedy, {}};
}

Finding problem(Harm harm, const std::string& subject, const std::string& found,
                const std::string& hurts, const std::string& remedy) {
  return {Status::problem, harm, subject, found, hurts, remedy, {}};
}

const char* to_string(Status status) {
  switch (status) {
    case Status::problem: return "problem";
    case Status::warning: return "warning";
    case Status::ok: return "ok";
  }
  return "?";
}

std::string list_of(const std::vector<std::string>& names) {
  constexpr std::size_t max_names = 8;
  const std::size_t listed = std::min(max_names, names.size());
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(listed), ", "));
  if (listed < names.size()) text += fmt::format(" and {} more", names.size() - listed);
  return text;
}

void append_joined(std::vector<Finding> of_nodes, std::size_t node_count,
                   std::vector<Finding>& findings) {
  const auto begin = static_cast<std::ptrdiff_t>(findings.size());
  for (Finding& finding : of_nodes) {
    const auto same =
        std::find_if(findings.begin() + begin, findings.end(), [&](const Finding& other) {
          return std::tie(other.status, other.subject, other.hurts, other.remedy) ==
                 std::tie(finding.status, finding.subject, finding.hurts, finding.remedy);
        });
    if (same == findings.end())
      findings.push_back(std::move(finding));
    else
      same->nodes.insert(same->nodes.end(), finding.nodes.begin(), finding.nodes.end());
  }
  for (auto finding = findings.begin() + begin; finding != findings.end(); ++finding)
    if (finding->nodes.size() == node_count) finding->nodes.clear();
}

std::vector<Finding> find(const MachineFacts& facts) {
  std::vector<Finding> findings{find_in_launch(facts.job, facts.nodes),
                                find_in_thread_level(facts.job)};
  find_in_cores(facts, findings);
  find_in_nodes(facts, findings);
  findings.push_back(find_in_time(facts.job));
  if (!facts.nodes.empty())
    findings.push_back(ok("software", train::to_line(facts.nodes.front().versions)));
  find_differences(facts, findings);
  std::stable_sort(findings.begin(), findings.end(), [](const Finding& a, const Finding& b) {
    return std::tuple(a.status, a.harm) < std::tuple(b.status, b.harm);
  });
  return findings;
}

}  // namespace trireme::app
