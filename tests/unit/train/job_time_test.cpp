// SPDX-License-Identifier: Apache-2.0
//
// Tests train::query_job_time (train/run/job_time.hpp): the end of a batch job as Slurm, PBS,
// Torque, LSF and Flux report it. Scripts in a scratch folder stand in for the commands of these
// systems.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#include "support/stand_in_programs.hpp"
#include "trireme/base/clock.hpp"
#include "trireme/train/run/job_time.hpp"

namespace trireme::train {
namespace {

/// Replaces the batch system by small scripts in PATH.
class JobTimeTest : public ::testing::Test {
 protected:
  void program(const std::string& name, const std::string& prints) {
    programs_.add(name, "echo \"$@\" > '" + (programs_ / "arguments") + "'\ncat <<'END'\n" +
                            prints + "\nEND");
  }
  std::string arguments() const {
    std::string line;
    std::ifstream file(programs_ / "arguments");
    std::getline(file, line);
    return line;
  }

 private:
  test::StandInPrograms programs_;
};

void expect_left(double seconds, const std::string& source) {
  const auto job = query_job_time();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->seconds_left, seconds);
  EXPECT_EQ(job->source, source);
}

TEST_F(JobTimeTest, IsNoneOutsideAJob) { EXPECT_FALSE(query_job_time().has_value()); }

TEST_F(JobTimeTest, AsksSqueueWhereSlurmDoesNotSayTheEnd) {
  program("squeue", "1-02:03:04");
  setenv("SLURM_JOB_ID", "17", 1);
  expect_left(86400 + 2 * 3600 + 3 * 60 + 4, "Slurm job 17");
  EXPECT_EQ(arguments(), "-h -j 17 -o %L");
  program("squeue", "9:59");
  expect_left(599, "Slurm job 17");
  program("squeue", "UNLIMITED");
  EXPECT_FALSE(query_job_time().has_value());
}

TEST_F(JobTimeTest, AsksSlurmWhenTheJobWasSubmittedAndStarted) {
  EXPECT_FALSE(query_job_start(batch_jobs()).started);
  setenv("TZ", "UTC", 1);
  tzset();
  program("squeue", "2026-11-29T16:10:43 2026-11-29T17:00:00");
  setenv("SLURM_JOB_ID", "17", 1);
  JobStart job = query_job_start(batch_jobs());
  EXPECT_EQ(arguments(), "-h -j 17 -o %V %S");
  EXPECT_EQ(job.submitted, parse_utc("2026-11-29T16:10:43Z"));
  EXPECT_EQ(job.started, parse_utc("2026-11-29T17:00:00Z"));
  setenv("SLURM_JOB_START_TIME", "1795970400", 1);
  EXPECT_EQ(query_job_start(batch_jobs()).started, 1795970400);
  program("squeue", "slurm_load_jobs error: Unable to contact slurm controller");
  job = query_job_start(batch_jobs());
  EXPECT_FALSE(job.submitted);
  EXPECT_EQ(job.started, 1795970400);
  unsetenv("SLURM_JOB_START_TIME");
  EXPECT_FALSE(query_job_start(batch_jobs()).started);
}

TEST_F(JobTimeTest, PutsNothingIntoACommandThatIsNoJob) {
  program("squeue", "9:59");
  for (const char* odd : {"", "17; touch x", "$(id)", "'", "-v"}) {
    setenv("SLURM_JOB_ID", odd, 1);
    EXPECT_FALSE(query_job_time().has_value()) << odd;
  }
  EXPECT_EQ(arguments(), "");
}

TEST_F(JobTimeTest, CountsFromTheStartOfAPbsJob) {
  setenv("PBS_JOBID", "123[4].server-1.site", 1);
  const std::time_t start = static_cast<std::time_t>(wall_seconds()) - 600;
  char date[64];
  std::strftime(date, sizeof date, "%a %b %d %H:%M:%S %Y", std::localtime(&start));
  program("qstat",
          "Job Id: 123[4].server-1.site\n    Job_Name = chain\n    resources_used.walltime = "
          "00:00:00\n    Resource_List.walltime = 01:00:00\n    stime = " +
              std::string(date));
  const auto job = query_job_time();
  ASSERT_TRUE(job.has_value());
  EXPECT_EQ(job->source, "PBS job 123[4].server-1.site");
  EXPECT_LE(job->seconds_left, 3000);
  EXPECT_GE(job->seconds_left, 3000 - (wall_seconds() - static_cast<double>(start + 600)));
}

TEST_F(JobTimeTest, TakesThePbsTimeUsedWhereTheStartIsNotTold) {
  setenv("PBS_JOBID", "12.server", 1);
  program("qstat",
          "Job Id: 12.server\n    resources_used.walltime = 00:10:00\n    Resource_List.walltime = "
          "26:00:00");
  expect_left(26 * 3600 - 600, "PBS job 12.server");
  program("qstat", "Job Id: 12.server\n    Resource_List.ncpus = 2");
  EXPECT_FALSE(query_job_time().has_value());
}

TEST_F(JobTimeTest, TakesTheTimeThatTorqueCounts) {
  setenv("PBS_JOBID", "12.server", 1);
  program(
      "qstat",
      "Job Id: 12.server\n    Resource_List.walltime = 01:00:00\n    Walltime.Remaining = 1234");
  expect_left(1234, "PBS job 12.server");
}

TEST_F(JobTimeTest, TakesALimitOfLsfAndNoEstimate) {
  setenv("LSB_JOBID", "99", 1);
  program("bjobs", "2:05 L");
  expect_left(7500, "LSF job 99");
  program("bjobs", "2:05 E");
  EXPECT_FALSE(query_job_time().has_value());
  program("bjobs", "-");
  EXPECT_FALSE(query_job_time().has_value());
}

TEST_F(JobTimeTest, AsksFlux) {
  setenv("FLUX_URI", "local:///tmp/flux", 1);
  program("flux", "3599");
  expect_left(3599, "Flux job 3599");  // The script prints the same for every command.
  EXPECT_EQ(arguments(), "job timeleft");
  program("flux", "inf");
  EXPECT_FALSE(query_job_time().has_value());
}

TEST_F(JobTimeTest, IsNoneWhereTheBatchSystemDoesNotAnswer) {
  program("squeue", "");
  setenv("SLURM_JOB_ID", "17", 1);
  EXPECT_FALSE(query_job_time().has_value());
}

TEST(JobEnergy, IsTheSumOfTheStepsThatSlurmMeasured) {
  EXPECT_EQ(parse_job_energy("4711|900\n4711.batch|900\n4711.extern|1\n4711.0|500\n4711.1|20\n"),
            520);
  EXPECT_FALSE(parse_job_energy(""));
  EXPECT_FALSE(parse_job_energy("4711|\n4711.0|\n4711.1|0\n"));
  EXPECT_FALSE(parse_job_energy("4711.0|18446744073709551614\n"));
  EXPECT_FALSE(parse_job_energy("sacct: error: nothing|1.5|2\n4711.0 500\n"));
}

TEST_F(JobTimeTest, EnergyIsAskedOfSacct) {
  program("sacct", "4711.0|500");
  EXPECT_EQ(query_job_energy({BatchJob::System::slurm, "4711"}), 500);
  EXPECT_EQ(arguments(), "--noheader --parsable2 --format JobID,ConsumedEnergyRaw -j 4711");
  EXPECT_FALSE(query_job_energy({BatchJob::System::pbs, "4711"}));
}

}  // namespace
}  // namespace trireme::train
