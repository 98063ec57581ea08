// SPDX-License-Identifier: Apache-2.0
//
// The account of a run from the rows of its metrics.jsonl: what each start wrote, the gaps between
// starts, and steps that are made again.

#include "trireme/monitor/run_account.hpp"

#include <cmath>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "scratch_folder.hpp"
#include "trireme/monitor/run_folder.hpp"

namespace trireme::monitor {
namespace {

using Part = StartPart;
using Json = nlohmann::ordered_json;

/// Seconds of all parts of an account.
double sum_of(const Account& account) {
  return std::accumulate(account.parts.begin(), account.parts.end(), 0.0) + account.repeated +
         account.job + account.hung + account.queue + account.stopped;
}

double part(const Account& account, Part name) {
  return account.parts[static_cast<std::size_t>(name)];
}

class RunAccount : public testing::Test {
 protected:
  void event(const std::string& name, int step) {
    add({{"kind", "event"}, {"step", step}, {"event", name}});
  }
  void train(int step, double step_s, double elapsed, double mfu = -1) {
    Json row{{"kind", "train"}, {"step", step}, {"step_s", step_s}, {"elapsed_s", elapsed}};
    if (mfu >= 0) row["mfu"] = mfu;
    add(row);
  }
  /// A start whose process begins at `launched`. Its launch takes 1 s, the rest is training.
  void account(double launched, int step, double train_s, bool ended, Json more = {}) {
    Json row{{"kind", "account"}, {"step", step},          {"launched", launched},
             {"nodes", 2},        {"launch_s", 1},         {"train_s", train_s},
             {"ended", ended},    {"elapsed_at_launch", 0}};
    if (more.is_object()) row.update(more);
    add(row);
  }
  void add(const Json& row) { text += row.dump() + "\n"; }

  std::optional<Account> read(std::optional<ExitTimes> exit = {}) {
    write_text(folder.metrics(), text);
    MetricsReader row = folder.read_metrics(AccountReader::keys());
    AccountReader reader;
    while (row.next()) reader.add(row);
    return reader.result(exit);
  }

  ScratchFolder scratch;
  RunFolder folder{scratch.path()};
  std::string text;
};

TEST_F(RunAccount, IsNoneWithoutItsRows) {
  train(10, 1, 10);
  EXPECT_FALSE(read());
}

TEST_F(RunAccount, EnergyIsThatOfTheStartsThatKnowIt) {
  account(1000, 0, 1, false, {{"gpu_energy_j", 10}});
  account(1000, 5, 2, true,
          {{"gpu_energy_j", 30},
           {"host_energy_j", 100},
           {"host_energy_source", "rapl"},
           {"host_energy_scope", "shared"}});
  account(2000, 5, 0, false);
  account(2000, 5, 1, true, {{"gpu_energy_j", 5}});
  account(2000, 5, 1, true);  // A row of batch.ramp begins, and the run is killed.
  const auto found = read();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->gpu_energy.joules, 35);
  EXPECT_EQ(found->gpu_energy.starts, 2);
  EXPECT_EQ(found->host_energy.joules, 100);
  EXPECT_EQ(found->host_energy.starts, 1);
  EXPECT_EQ(found->host_energy_source, "rapl");
  EXPECT_EQ(found->host_energy_scope, "shared");
  EXPECT_EQ(to_json(*found)["gpu_energy"]["joules"], 35);
}

TEST_F(RunAccount, EnergyOfAnEarlierJobBelongsToItsRun) {
  account(1000, 0, 1, true);
  account(2000, 0, 1, true, {{"previous_job_energy_j", 2e12}});
  ASSERT_TRUE(read());
  EXPECT_EQ(read()->slurm_energy.joules, 2e12);
  // Another run in the same folder.
  add({{"kind", "checkpoint"}, {"step", 0}});
  event("start", 0);
  account(3000, 0, 1, true, {{"previous_job_energy_j", 7}});
  EXPECT_EQ(read()->slurm_energy.starts, 0);
}

TEST_F(RunAccount, OneStartIsTheSumOfItsParts) {
  event("start", 0);
  account(1000, 0, 0, false);
  train(10, 2, 21, 0.5);
  account(1000, 10, 20, true, {{"evaluate_s", 4}, {"end_s", 0.5}});
  const Account found = *read();
  EXPECT_EQ(found.starts, 1);
  EXPECT_EQ(found.begin, 1000);
  EXPECT_EQ(found.wall(), 25.5);
  EXPECT_EQ(sum_of(found), found.wall());
  EXPECT_EQ(found.node_seconds, 2 * 25.5);
  EXPECT_EQ(found.steps, 10);
  EXPECT_EQ(found.scheduling_goodput(), 1);
  EXPECT_EQ(found.runtime_goodput(), 20 / 25.5);
  EXPECT_EQ(found.mfu, 0.5);
}

TEST_F(RunAccount, StepsThatAKillLostAreMadeAgain) {
  event("start", 0);
  account(1000, 0, 0, false);
  train(10, 1, 11);
  account(1000, 10, 10, false);
  add({{"kind", "checkpoint"}, {"step", 10}, {"elapsed_s", 11}});
  train(20, 1, 21);
  // Killed after its last row, 21 s after its process began. The next start begins 9 s later.
  account(1030, 10, 0, false);
  event("restart", 10);
  train(20, 1, 31);
  train(30, 1, 41);
  account(1030, 30, 20, true);
  const Account found = *read();
  EXPECT_EQ(found.starts, 2);
  EXPECT_EQ(found.steps, 30);
  EXPECT_EQ(found.repeated_steps, 10);
  EXPECT_EQ(found.repeated, 10);
  EXPECT_EQ(part(found, Part::train), 30);
  EXPECT_EQ(part(found, Part::launch), 2);
  EXPECT_EQ(found.stopped, 9);
  EXPECT_EQ(found.wall(), 51);
  EXPECT_EQ(sum_of(found), found.wall());
  EXPECT_EQ(found.runtime_goodput(), 30.0 / 42);
}

TEST_F(RunAccount, StepsOfARollbackAreMadeAgain) {
  event("start", 0);
  account(1000, 0, 0, false);
  train(10, 1, 11);
  event("rollback", 5);
  train(15, 1, 21);
  account(1000, 15, 20, true);
  const Account found = *read();
  EXPECT_EQ(found.steps, 15);
  EXPECT_EQ(found.repeated_steps, 5);
  EXPECT_EQ(found.repeated, 5);
}

TEST_F(RunAccount, StepsAreCountedByAllRows) {
  event("start", 0);
  account(1000, 0, 0, false);
  train(50, 1, 51);
  account(1000, 75, 75, true);  // a stop, before the next row of kind train
  account(1100, 75, 0, false);
  train(100, 1, 126);
  add({{"kind", "evaluate"}, {"step", 120}, {"elapsed_s", 146}});
  // Killed, 46 s after its process began.
  account(1200, 100, 0, false);
  train(150, 1, 160);
  account(1200, 150, 50, true);
  const Account found = *read();
  EXPECT_EQ(found.steps, 150);
  EXPECT_EQ(found.repeated_steps, 20);
  EXPECT_EQ(found.repeated, 50.0 * 20 / 50);
}

TEST_F(RunAccount, ACheckpointOfALongerRunAddsNoTime) {
  event("start", 0);
  account(1000, 0, 10, false);
  account(1100, 70, 0, false, {{"elapsed_at_launch", 99'999}});
  add({{"kind", "event"}, {"event", "restart"}, {"step", 70}, {"elapsed_s", 100'000}});
  account(1100, 80, 10, true, {{"elapsed_at_launch", 99'999}});
  EXPECT_EQ(read()->wall(), 111);
}

TEST_F(RunAccount, QueueIsNoStopAndTheTimeOfItsJobIsNoLaunch) {
  event("start", 0);
  account(1000, 0, 10, true, {{"job", "slurm 1"}, {"job_started", 995}, {"job_submitted", 900}});
  account(1100, 10, 10, true, {{"job", "slurm 2"}, {"job_started", 1090}, {"job_submitted", 1050}});
  // Another start of the same job.
  account(1120, 20, 10, true, {{"job", "slurm 2"}, {"job_started", 1090}, {"job_submitted", 1050}});
  const Account found = *read();
  EXPECT_EQ(found.begin, 995);
  EXPECT_EQ(found.queue, 1090 - 1050);
  EXPECT_EQ(found.stopped, (1050 - 1011) + (1120 - 1111));
  EXPECT_EQ(part(found, Part::launch), 3);
  EXPECT_EQ(found.job, 5 + 10);
  EXPECT_EQ(found.node_seconds, 2 * 48);
  EXPECT_EQ(sum_of(found), found.wall());
  EXPECT_EQ(found.wall(), found.end - found.begin);
  EXPECT_DOUBLE_EQ(found.scheduling_goodput(), 48 / found.wall());
}

TEST_F(RunAccount, AJobThatIsQueuedAgainKeepsItsNumber) {
  event("start", 0);
  account(1000, 0, 10, true, {{"job", "slurm 1"}, {"job_started", 995}, {"job_submitted", 900}});
  account(1600, 10, 10, true, {{"job", "slurm 1"}, {"job_started", 1590}, {"job_submitted", 900}});
  const Account found = *read();
  EXPECT_EQ(found.queue, 1590 - 1011);
  EXPECT_EQ(found.stopped, 0);
  EXPECT_EQ(found.job, 5 + 10);
}

/// The nodes of the second job were there before the first one ended; then a clock goes back.
TEST_F(RunAccount, StartsThatOverlapStillAddUp) {
  event("start", 0);
  account(1000, 0, 500, true);
  account(1600, 10, 10, true, {{"job", "slurm 2"}, {"job_started", 1100}});
  account(1300, 20, 10, true);
  const Account found = *read();
  EXPECT_EQ(found.job, 1600 - 1501);
  EXPECT_EQ(sum_of(found), found.wall());
  EXPECT_EQ(found.wall(), 501 + 99 + 11 + 10) << "its launch is left out";
}

TEST_F(RunAccount, AJobInTheQueueBesideTheRunIsNoQueueUntilTheRunEnds) {
  event("start", 0);
  account(1000, 0, 10, true);
  account(1100, 10, 10, true, {{"job", "slurm 2"}, {"job_started", 1090}, {"job_submitted", 900}});
  EXPECT_EQ(read()->queue, 1090 - 1011);
  EXPECT_EQ(read()->stopped, 0);
}

TEST_F(RunAccount, ExitRecordEndsAStartThatHung) {
  event("start", 0);
  account(1000, 0, 0, false);
  train(10, 1, 11);
  EXPECT_EQ(read()->wall(), 11);
  EXPECT_EQ(read(ExitTimes{1000, 1611})->hung, 600);
  EXPECT_EQ(sum_of(*read(ExitTimes{1000, 1611})), 611);
  EXPECT_EQ(read(ExitTimes{2000, 2001})->hung, 0) << "of a later start, which found nothing to do";
  account(1700, 0, 10, true, {{"previous_start", 1000}, {"previous_end", 1611}});
  const Account found = *read(ExitTimes{1701, 1712});
  EXPECT_EQ(found.hung, 600);
  EXPECT_EQ(found.stopped, 1700 - 1611);
  EXPECT_EQ(part(found, Part::end), 1);
  EXPECT_EQ(sum_of(found), found.wall());
}

TEST_F(RunAccount, AFreshStartAfterACheckpointIsAnotherRun) {
  event("start", 0);
  account(1000, 0, 10, false);
  event("start", 0);
  account(2000, 0, 10, false);
  EXPECT_EQ(read()->starts, 2) << "the first start has failed before its first checkpoint";
  add({{"kind", "checkpoint"}, {"step", 5}});
  event("start", 0);
  account(3000, 0, 10, true);
  EXPECT_EQ(read()->starts, 1);
  EXPECT_EQ(read()->begin, 3000);
}

TEST_F(RunAccount, NonsenseOfAStrangerIsLeftOut) {
  event("start", 0);
  account(1000, 0, 10, true);
  account(-5, 0, 10, true);
  account(1e300, 0, 10, true);
  add({{"kind", "account"}, {"launched", "yesterday"}});
  add({{"kind", "account"},
       {"launched", 1000},
       {"launch_s", 1},
       {"train_s", Json::array()},
       {"nodes", "many"},
       {"elapsed_at_launch", -1.7e308},
       {"step", 1e30},
       {"ended", 7}});
  train(-3, -1, -1);
  add({{"kind", "train"}, {"step", 1e300}, {"step_s", 1e300}});
  const Account found = *read(ExitTimes{1e12, -1e12});
  EXPECT_EQ(found.starts, 1);
  EXPECT_LT(found.wall(), 2e12) << "elapsed_at_launch is bounded";
  EXPECT_EQ(sum_of(found), found.wall());
  add({{"kind", "account"}, {"launched", 5}});
  EXPECT_EQ(read()->starts, 2);
  EXPECT_TRUE(std::isfinite(read()->runtime_goodput()));
}

}  // namespace
}  // namespace trireme::monitor
