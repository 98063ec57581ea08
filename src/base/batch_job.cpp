// SPDX-License-Identifier: Apache-2.0
//
// Finds the batch jobs around this process and asks their batch systems for job states.
//
// batch_jobs() reads the environment variables of Slurm, PBS, LSF and Flux. has_ended() runs the
// status command of one system (squeue, qstat, bjobs, flux) through the shell. The lease of a run
// folder uses both to detect a dead owner; the walltime limit uses batch_jobs(). Job numbers come
// from the environment and from files, so is_safe_in_quotes() checks them before they enter a shell
// command.

#include "trireme/base/batch_job.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <memory>
#include <string_view>

namespace trireme {
namespace {

struct Names {
  const char *text, *title;
};
// Indexed by BatchJob::System.
constexpr std::array<Names, 4> names{
    {{"slurm", "Slurm"}, {"pbs", "PBS"}, {"lsf", "LSF"}, {"flux", "Flux"}}};

const Names& names_of(BatchJob::System system) { return names[static_cast<std::size_t>(system)]; }

/// Returns whether the job number is safe between single quotes in a shell command. The bytes
/// \xC6\x92 are the letter "ƒ" in UTF-8, with which job numbers of Flux may start.
bool is_safe_in_quotes(const std::string& id) {
  return id.find_first_not_of(
             "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._-[]\xC6\x92") ==
             std::string::npos &&
         !id.starts_with('-');
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::string first_word(const std::string& text) {
  return text.substr(0, text.find_first_of(" \t\n"));
}

std::string lsf_id() {
  const std::string id = variable("LSB_JOBID"), index = variable("LSB_JOBINDEX");
  return id.empty() || index.empty() || index == "0" ? id : id + "[" + index + "]";
}

bool is_one_of(const std::string& state, std::initializer_list<std::string_view> states) {
  return std::find(states.begin(), states.end(), state) != states.end();
}

/// Returns the job's state letter; empty if the job is unknown. OpenPBS reports ended jobs only
/// with -x, but -x selects XML output in Torque. So this function asks without -x first.
std::string pbs_state(const std::string& id) {
  const auto state = qstat_field(run_command("qstat -f '" + id + "'"), "job_state");
  return state ? *state
               : qstat_field(run_command("qstat -x -f '" + id + "'"), "job_state").value_or("");
}

/// Returns whether this process runs inside a Flux allocation. If so, has_ended() must ask the
/// parent instance, because only the parent knows allocations.
bool in_flux_allocation() { return !first_word(run_command("flux getattr jobid")).empty(); }

}  // namespace

std::string BatchJob::text() const { return names_of(system).text + (id.empty() ? "" : " " + id); }
std::string BatchJob::title() const {
  return names_of(system).title + (id.empty() ? "" : " job " + id);
}

std::optional<BatchJob> BatchJob::parse(const std::string& text) {
  const std::size_t space = text.find(' ');
  const auto known = std::find_if(names.begin(), names.end(), [&](const Names& one) {
    return text.substr(0, space) == one.text;
  });
  if (known == names.end()) return std::nullopt;
  BatchJob job{static_cast<System>(known - names.begin()),
               space == std::string::npos ? "" : text.substr(space + 1)};
  if (!is_safe_in_quotes(job.id)) return std::nullopt;
  return job;
}

std::vector<BatchJob> batch_jobs() {
  using System = BatchJob::System;
  std::vector<BatchJob> jobs;
  const auto add = [&](System system, const std::string& id) {
    if (!id.empty() && is_safe_in_quotes(id)) jobs.push_back({system, id});
  };
  add(System::slurm, variable("SLURM_JOB_ID"));
  add(System::pbs, variable("PBS_JOBID"));
  add(System::lsf, lsf_id());
  if (!variable("FLUX_URI").empty()) {
    std::string id = first_word(run_command("flux getattr jobid"));
    if (id.empty()) id = variable("FLUX_JOB_ID");
    jobs.push_back({System::flux, is_safe_in_quotes(id) ? id : ""});
  }
  return jobs;
}

bool has_ended(const BatchJob& job) {
  if (job.id.empty()) return false;
  switch (job.system) {
    case BatchJob::System::slurm:
      return is_one_of(first_word(run_command("squeue -h -t all -j '" + job.id + "' -o %T")),
                       {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL",
                        "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"});
    case BatchJob::System::pbs:
      return is_one_of(pbs_state(job.id),
                       // C: completed (Torque). F: finished. X: finished subjob of an array.
                       {"C", "F", "X"});
    case BatchJob::System::lsf:
      return is_one_of(first_word(run_command("bjobs -noheader -o stat '" + job.id + "'")),
                       {"DONE", "EXIT"});
    case BatchJob::System::flux:
      return first_word(run_command(std::string("flux ") +
                                    (in_flux_allocation() ? "--parent " : "") +
                                    "jobs -n -o '{state}' '" + job.id + "'")) == "INACTIVE";
  }
  return false;
}

std::string run_command(const std::string& command) {
  // A batch system that hangs delays the caller by at most 20 seconds per command.
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(
      popen(("LC_ALL=C timeout 20 " + command + " 2>/dev/null").c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe && text.size() < (1 << 16)) {
    const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (count == 0) break;
    text.append(buffer.data(), count);
  }
  return text;
}

std::optional<std::string> qstat_field(const std::string& text, const std::string& key) {
  const std::size_t at = text.find("    " + key + " = ");
  if (at == std::string::npos) return std::nullopt;
  const std::size_t begin = at + key.size() + 7;
  return text.substr(begin, text.find('\n', begin) - begin);
}

}  // namespace trireme
