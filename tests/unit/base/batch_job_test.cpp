// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "support/stand_in_programs.hpp"
#include "trireme/base/batch_job.hpp"

namespace trireme {
namespace {

/// Replaces the commands of the batch systems by shell scripts in a folder at the front of PATH.
class BatchJobTest : public ::testing::Test {
 protected:
  /// Installs the command `name`: a script that runs `case "$*" in` with these cases.
  void program(const std::string& name, const std::string& cases) const {
    programs_.add(name,
                  "case \"$*\" in\n" + cases + "\n*) echo 'no such job' >&2; exit 1 ;;\nesac");
  }
  static bool over(const std::string& text) { return has_ended(BatchJob::parse(text).value()); }

 private:
  test::StandInPrograms programs_;
};

TEST_F(BatchJobTest, IsTakenFromTheEnvironmentOuterSystemFirst) {
  EXPECT_TRUE(batch_jobs().empty());
  program("flux", "'getattr jobid') echo fABC ;;");
  setenv("FLUX_URI", "local:///tmp/flux", 1);
  setenv("FLUX_JOB_ID", "fInner", 1);
  setenv("LSB_JOBID", "99", 1);
  setenv("LSB_JOBINDEX", "3", 1);
  setenv("PBS_JOBID", "12[4].server-1.site", 1);
  setenv("SLURM_JOB_ID", "17", 1);
  std::string all;
  for (const BatchJob& job : batch_jobs()) {
    all += job.text() + "; " + job.title() + "\n";
    EXPECT_EQ(BatchJob::parse(job.text()).value().text(), job.text());
  }
  EXPECT_EQ(all,
            "slurm 17; Slurm job 17\npbs 12[4].server-1.site; PBS job 12[4].server-1.site\nlsf "
            "99[3]; LSF job 99[3]\nflux fABC; Flux job fABC\n");
  setenv("LSB_JOBINDEX", "0", 1);
  EXPECT_EQ(batch_jobs()[2].text(), "lsf 99");
}

TEST_F(BatchJobTest, OfFluxIsTheTaskWhereThereIsNoAllocation) {
  program("flux", "'jobs -n -o {state} fInner') echo INACTIVE ;;");
  setenv("FLUX_URI", "local:///tmp/flux", 1);
  setenv("FLUX_JOB_ID", "fInner", 1);
  EXPECT_EQ(batch_jobs().at(0).text(), "flux fInner");
  EXPECT_TRUE(over("flux fInner"));
  unsetenv("FLUX_JOB_ID");
  EXPECT_EQ(batch_jobs().at(0).text(), "flux");
  EXPECT_FALSE(over("flux"));
}

TEST_F(BatchJobTest, PutsNothingIntoACommandThatIsNoJob) {
  for (const char* odd : {"", "17; touch x", "$(id)", "'", "-v"}) {
    setenv("SLURM_JOB_ID", odd, 1);
    EXPECT_TRUE(batch_jobs().empty()) << odd;
  }
  for (const char* odd : {"", "17", "slurm 1'7", "slurm -v", "slurm 1;2", "condor 3"})
    EXPECT_FALSE(BatchJob::parse(odd).has_value()) << odd;
}

TEST_F(BatchJobTest, IsOverWhereItsBatchSystemSaysSo) {
  program("squeue", "*'-j 1 '*) echo TIMEOUT ;;\n*'-j 2 '*) echo COMPLETING ;;");
  EXPECT_TRUE(over("slurm 1"));
  EXPECT_FALSE(over("slurm 2"));
  EXPECT_FALSE(over("slurm 3"));  // unknown: may belong to another cluster
  program("qstat",
          "'-f 1.server') printf 'Job Id: 1.server\\n    job_state = C\\n' ;;\n'-f 2.server') "
          "printf 'Job Id: 2.server\\n    job_state = R\\n' ;;\n"
          "'-x -f 3.server') printf 'Job Id: 3.server\\n    job_state = F\\n' ;;");
  EXPECT_TRUE(over("pbs 1.server"));
  EXPECT_FALSE(over("pbs 2.server"));
  EXPECT_TRUE(over("pbs 3.server"));
  EXPECT_FALSE(over("pbs 4.server"));
  program("bjobs", "*' 1') echo EXIT ;;\n*' 2[7]') echo 'DONE ' ;;\n*' 3') echo RUN ;;");
  EXPECT_TRUE(over("lsf 1"));
  EXPECT_TRUE(over("lsf 2[7]"));
  EXPECT_FALSE(over("lsf 3"));
  program("flux",
          "'getattr jobid') echo fMe ;;\n'--parent jobs -n -o {state} fOld') echo INACTIVE "
          ";;\n'--parent jobs -n -o {state} fMe') echo RUN ;;");
  EXPECT_TRUE(over("flux fOld"));
  EXPECT_FALSE(over("flux fMe"));
  EXPECT_FALSE(over("flux fOther"));
}

}  // namespace
}  // namespace trireme
