// SPDX-License-Identifier: Apache-2.0
//
// Adds up where the time of a run went, from rows of metrics.jsonl.
//
// A start writes rows of kind account: when its process began and the seconds of each part so far,
// the last of them at its end. A start that was killed has none at its end: the time between its
// last account and its last row counts as training.
//
//   queue | job | launch ... first step | train, evaluate, checkpoint | stopped | queue | job ...
//               |<-------------------- a start -------------------->|
//
// Rows come from a file that others may have changed, so no number is trusted to be sensible.
#include "trireme/monitor/run_account.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "trireme/base/clock.hpp"
#include "trireme/base/text.hpp"

namespace trireme::monitor {
namespace {

struct PartNames {
  const char *key, *label;
};
// Indexed by StartPart.
constexpr std::array<PartNames, start_parts> part_names{{{"launch_s", "launch"},
                                                         {"mpi_s", "MPI"},
                                                         {"inputs_s", "deck and data"},
                                                         {"allocate_s", "plan and allocation"},
                                                         {"restore_s", "restore"},
                                                         {"first_step_s", "first steps"},
                                                         {"train_s", "training"},
                                                         {"evaluate_s", "evaluation"},
                                                         {"checkpoint_s", "waits for checkpoints"},
                                                         {"end_s", "end"}}};

double& of(StartSeconds& seconds, StartPart part) {
  return seconds[static_cast<std::size_t>(part)];
}

double sum_of(const StartSeconds& seconds) {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0);
}

constexpr double largest = 1e12;  // seconds and steps; larger ones are a stranger's

/// Returns a number of a row if it is at least 0 and not beyond all measure.
std::optional<double> number(const MetricsReader& row, const char* key) {
  const std::optional<double> found = row.number(key);
  return found && *found >= 0 && *found <= largest ? found : std::nullopt;
}

std::optional<double> joules_in(const MetricsReader& row, const char* key) {
  const std::optional<double> found = row.number(key);
  return found && *found >= 0 ? found : std::nullopt;
}

std::int64_t step_of(const MetricsReader& row) {
  return static_cast<std::int64_t>(number(row, "step").value_or(0));
}

/// Null if no start knows it.
nlohmann::ordered_json energy_json(const Account::Energy& energy) {
  if (energy.starts == 0) return nullptr;
  return {{"joules", energy.joules}, {"starts", energy.starts}};
}

double part_of(double part, double whole) { return whole > 0 ? part / whole : 0; }

}  // namespace

const char* key_of(StartPart part) { return part_names[static_cast<std::size_t>(part)].key; }

std::string describe_parts(const StartSeconds& seconds) {
  const double least = 1e-3 * sum_of(seconds);
  std::string text;
  for (std::size_t part = 0; part < start_parts; ++part)
    if (seconds[part] > 0 && seconds[part] >= least)
      text += fmt::format("{}{} {}", text.empty() ? "" : ", ", part_names[part].label,
                          format_short_seconds(seconds[part]));
  return text;
}

std::vector<Account::Part> Account::all_parts() const {
  std::vector<Part> all{{"queue_s", "queue", queue},
                        {"stopped_s", "between starts", stopped},
                        {"job_s", "job before the start", job}};
  for (std::size_t part = 0; part < start_parts; ++part) {
    all.push_back({part_names[part].key, part_names[part].label, parts[part]});
    if (static_cast<StartPart>(part) == StartPart::train)
      all.push_back({"repeated_s", "steps done again", repeated});
  }
  all.push_back({"hung_s", "until a fault was found", hung});
  return all;
}

double Account::wall() const {
  double sum = 0;
  for (const Part& part : all_parts()) sum += part.seconds;
  return sum;
}

double Account::scheduling_goodput() const { return part_of(wall() - queue - stopped, wall()); }

double Account::runtime_goodput() const {
  return part_of(parts[static_cast<std::size_t>(StartPart::train)], wall() - queue - stopped);
}

std::vector<std::string> AccountReader::keys() {
  std::vector<std::string> keys{"kind",
                                "event",
                                "step",
                                "step_s",
                                "mfu",
                                "elapsed_s",
                                "ended",
                                "launched",
                                "job",
                                "job_submitted",
                                "nodes",
                                "job_started",
                                "previous_start",
                                "previous_end",
                                "elapsed_at_launch",
                                "gpu_energy_j",
                                "host_energy_j",
                                "host_energy_source",
                                "host_energy_scope",
                                "previous_job_energy_j"};
  for (const PartNames& names : part_names) keys.emplace_back(names.key);
  return keys;
}

void AccountReader::add(const MetricsReader& row) {
  const auto& kind = row["kind"];
  if (kind == "event") {
    if (row["event"] == "start") {
      // After a checkpoint it begins another run. Before, the starts so far have failed.
      if (has_checkpoint_) {
        AccountReader another;
        another.job_ = job_;
        another.job_started_ = job_started_;
        *this = another;
      }
      step_ = 0;
    }
    if (row["event"] == "rollback") step_ = step_of(row);
  }
  if (kind == "checkpoint") has_checkpoint_ = true;
  if (kind == "account") add_account(row);
  if (!start_) return;
  if (const auto elapsed = number(row, "elapsed_s"))
    start_->last_elapsed = std::max(start_->last_elapsed, *elapsed);
  if (kind == "event") return;
  const std::int64_t before = step_;
  advance(step_of(row));
  const auto mfu = number(row, "mfu"), seconds = number(row, "step_s");
  if (!mfu || !seconds) return;
  mfu_ += *mfu * static_cast<double>(step_ - before) * *seconds;
  mfu_seconds_ += static_cast<double>(step_ - before) * *seconds;
}

void AccountReader::add_account(const MetricsReader& row) {
  const double launched = number(row, "launched").value_or(0);
  if (launched == 0) return;
  if (!start_ || launched != start_->launched) begin_start(row, launched);
  for (std::size_t part = 0; part < start_parts; ++part)
    start_->seconds[part] = number(row, part_names[part].key).value_or(0);
  start_->nodes = number(row, "nodes").value_or(1);
  const double elapsed = row.number("elapsed_at_launch").value_or(0);
  start_->elapsed_at_launch = std::clamp(elapsed, -largest, largest);
  start_->ended = row["ended"] == true;
  // The first row of a start, and of a row of batch.ramp, has no energy yet.
  if (const auto joules = joules_in(row, "gpu_energy_j")) start_->gpu_joules = joules;
  if (const auto joules = joules_in(row, "host_energy_j")) {
    start_->host_joules = joules;
    const auto text = [&](const char* key) {
      return row[key].is_string() ? printable(row[key].get<std::string>(), 20) : "";
    };
    account_.host_energy_source = text("host_energy_source");
    account_.host_energy_scope = text("host_energy_scope");
  }
}

void AccountReader::begin_start(const MetricsReader& row, double launched) {
  // 1. Close the start before.
  if (start_) {
    const auto start = number(row, "previous_start"), end = number(row, "previous_end");
    close(*start_, start && end ? std::optional(ExitTimes{*start, *end}) : std::nullopt, account_);
    if (const auto joules = joules_in(row, "previous_job_energy_j")) {
      account_.slurm_energy.joules += *joules;
      ++account_.slurm_energy.starts;
    }
  }
  // 2. The job. A job that is queued again keeps its number, but starts at another time.
  const std::string job = row["job"].is_string() ? row["job"].get<std::string>() : "";
  const std::optional<double> job_started = number(row, "job_started");
  const bool is_new_job = job_started && (job != job_ || job_started != job_started_);
  job_ = job;
  job_started_ = job_started;
  // A job may have started before the start before ended.
  const double end = account_.starts == 0 ? 0 : account_.end;
  const double begin =
      is_new_job ? std::clamp(*job_started, std::min(end, launched), launched) : launched;
  // 3. The gap since the start before.
  if (account_.starts == 0) {
    account_.begin = account_.end = begin;
  } else if (begin > end) {
    const double submitted = number(row, "job_submitted").value_or(begin);
    const double queue_begin = is_new_job ? std::clamp(submitted, end, begin) : begin;
    account_.queue += begin - queue_begin;
    account_.stopped += queue_begin - end;
  }
  ++account_.starts;
  // The process may be older than the program: a shell that waited, then became the program.
  start_ = {.launched = launched,
            .job_seconds = launched - begin,
            .overlap = std::max(0.0, end - launched)};
  step_ = step_of(row);
}

void AccountReader::advance(std::int64_t step) {
  if (step <= step_) return;
  start_->steps += step - step_;
  start_->repeated_steps += std::clamp(max_step_ - step_, std::int64_t{0}, step - step_);
  step_ = step;
  max_step_ = std::max(max_step_, step);
}

void AccountReader::close(const Start& start, std::optional<ExitTimes> exit, Account& account) {
  // 1. The time after the last account.
  StartSeconds seconds = start.seconds;
  if (!start.ended)
    of(seconds, StartPart::train) +=
        std::max(0.0, start.last_elapsed - start.elapsed_at_launch - sum_of(seconds));
  const double rows_end = start.launched + sum_of(seconds);
  double& launch = of(seconds, StartPart::launch);
  const double overlap = std::min(start.overlap, launch);
  launch -= overlap;
  // A start that finds nothing to do writes exit.json too, and begins after this one has ended.
  const double rest = exit && exit->start <= rows_end ? std::max(0.0, exit->end - rows_end) : 0;
  if (start.ended)
    of(seconds, StartPart::end) += rest;
  else
    account.hung += rest;
  // 2. Steps that were made before take as long as the others.
  const double repeated =
      of(seconds, StartPart::train) *
      part_of(static_cast<double>(start.repeated_steps), static_cast<double>(start.steps));
  of(seconds, StartPart::train) -= repeated;
  account.repeated += repeated;
  account.repeated_steps += start.repeated_steps;
  account.steps += start.steps - start.repeated_steps;
  // 3. Add the rest.
  const auto add = [](Account::Energy& energy, const std::optional<double>& joules) {
    energy.joules += joules.value_or(0);
    energy.starts += joules ? 1 : 0;
  };
  add(account.gpu_energy, start.gpu_joules);
  add(account.host_energy, start.host_joules);
  for (std::size_t part = 0; part < start_parts; ++part) account.parts[part] += seconds[part];
  account.job += start.job_seconds;
  account.node_seconds +=
      start.nodes * (start.job_seconds + rows_end + rest - start.launched - overlap);
  account.end = std::max(account.end, rows_end + rest);
}

std::optional<Account> AccountReader::result(std::optional<ExitTimes> exit) const {
  if (!start_) return std::nullopt;
  Account account = account_;
  close(*start_, exit, account);
  if (mfu_seconds_ > 0) account.mfu = mfu_ / mfu_seconds_;
  return account;
}

nlohmann::ordered_json to_json(const Account& account) {
  using Json = nlohmann::ordered_json;
  Json parts = Json::object();
  for (const Account::Part& part : account.all_parts())
    parts[part.key] = {{"label", part.label}, {"seconds", part.seconds}};
  return {{"starts", account.starts},
          {"begin", utc_timestamp(account.begin)},
          {"end", utc_timestamp(account.end)},
          {"wall_s", account.wall()},
          {"node_hours", account.node_seconds / 3600},
          {"steps", account.steps},
          {"repeated_steps", account.repeated_steps},
          {"parts", std::move(parts)},
          {"scheduling_goodput", account.scheduling_goodput()},
          {"runtime_goodput", account.runtime_goodput()},
          {"program_goodput", account.mfu ? Json(*account.mfu) : Json()},
          {"gpu_energy", energy_json(account.gpu_energy)},
          {"host_energy", energy_json(account.host_energy)},
          {"slurm_energy", energy_json(account.slurm_energy)},
          {"host_energy_source", account.host_energy_source},
          {"host_energy_scope", account.host_energy_scope}};
}

}  // namespace trireme::monitor
