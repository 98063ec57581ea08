// SPDX-License-Identifier: Apache-2.0
//
// Start and end of a process, seen from outside: the environment variables of launchers, and the
// exit codes that a batch script receives. Starts environment_probe directly and under mpirun.

#include <array>
#include <cstdio>
#include <string>

#include <sys/wait.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trireme/base/clock.hpp"

namespace trireme::comm {
namespace {

using testing::HasSubstr;

struct Ended {
  int code = -1;
  std::string output;
};

Ended run(const std::string& command) {
  Ended ended;
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ended;
  std::array<char, 4096> text;
  while (std::fgets(text.data(), text.size(), pipe) != nullptr) ended.output += text.data();
  const int status = pclose(pipe);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

const std::string probe = TRIREME_PROBE;
std::string mpirun(int ranks) {
  return std::string(TRIREME_MPIRUN) + " " + std::to_string(ranks) + " ";
}

TEST(Environment, AloneIsAWorldOfOneWithoutMpi) {
  const Ended ended = run(probe + " leave 0");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_EQ(ended.output, "rank 0 of 1, without MPI\n");
}

TEST(Environment, ABatchScriptOfManyTasksIsNoStep) {
  EXPECT_EQ(run("SLURM_JOB_ID=7 SLURM_NTASKS=4 SLURM_PROCID=0 " + probe + " leave 0").output,
            "rank 0 of 1, without MPI\n");
}

TEST(Environment, AStepWhoseTasksDoNotSeeEachOtherIsRefused) {
  const Ended ended =
      run("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_STEP_NUM_TASKS=4 SLURM_NTASKS=4 " +
          probe + " leave 0");
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("srun started 4 tasks"));
  EXPECT_THAT(ended.output, HasSubstr("srun --mpi=list"));
}

TEST(Environment, AStepOfOneTaskIsAlone) {
  const Ended ended =
      run("SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_NTASKS=4 " +
          probe + " leave 0");
  EXPECT_EQ(ended.code, 0) << ended.output;
}

TEST(Environment, MpirunInsideAJobGoesByItsOwnCount) {
  // Without this setting, Open MPI 5 and newer would request the nodes of a Slurm job that does not
  // exist.
  const Ended ended = run("PRTE_MCA_ras=^slurm SLURM_JOB_ID=7 SLURM_NTASKS=4 " + mpirun(1) +
                          "env SLURM_STEP_ID=0 SLURM_PROCID=0 " + probe + " leave 0");
  EXPECT_EQ(ended.code, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("rank 0 of 1"));
}

TEST(Environment, AnotherLibrarysLauncherIsRefused) {
  const Ended ended = run("PMI_SIZE=2 PMI_RANK=0 " + probe + " leave 0");
  EXPECT_EQ(ended.code, 2) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("started 2 processes, but MPI sees a world of one"));
}

TEST(Environment, LeavesWithTheCodesOfTheContract) {
  for (const int code : {0, 2, 75}) {
    const Ended ended = run(mpirun(2) + probe + " leave " + std::to_string(code));
    EXPECT_EQ(ended.code, code) << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("rank 1 of 2"));
  }
  EXPECT_EQ(run(probe + " leave 75").code, 75);
}

TEST(Environment, OneRanksCodeIsTheJobs) {
  EXPECT_EQ(run(mpirun(3) + probe + " leave_on_last 75").code, 75);
}

TEST(Environment, AbortEndsPeersThatAreStuck) {
  const double begin = monotonic_seconds();
  const Ended ended = run(mpirun(3) + probe + " abort 77");
  EXPECT_EQ(ended.code, 77) << ended.output;
  EXPECT_LT(monotonic_seconds() - begin, 300)
      << "the deadline of abort is 10 s; without it they sleep for ever";
  EXPECT_EQ(run(probe + " abort 77").code, 77) << "without MPI";
}

}  // namespace
}  // namespace trireme::comm
