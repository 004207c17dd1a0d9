#include "launch/slurm/submission.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::launcher {
namespace {

TEST(SubmissionTest, ANewJobHasNothingOfTheOldOne) {
  const base::Environment kept = without_job({{"SLURM_CONF", "/etc/slurm.conf"},
                                              {"SLURM_JOB_ID", "7"},
                                              {"SLURMD_NODENAME", "n1"},
                                              {"SLURM_GPUS_PER_NODE", "4"},
                                              {"SRUN_CPUS_PER_TASK", "8"},
                                              {"SBATCH_ACCOUNT", "mine"},
                                              {"PATH", "/bin"}});
  EXPECT_EQ(
      kept.values(),
      (base::Environment{{"SLURM_CONF", "/etc/slurm.conf"}, {"SBATCH_ACCOUNT", "mine"}, {"PATH", "/bin"}})
          .values());
}

TEST(SubmissionTest, WithoutSlurmNothingCanBeSent) {
  EXPECT_THROW(submit_script("#!/bin/bash\n", {{"PATH", "/nonexistent"}}), ConfigError);
  EXPECT_THROW(test_script("#!/bin/bash\n", {{"PATH", "/nonexistent"}}), ConfigError);
  EXPECT_THROW(follow_job("7", {{"PATH", "/nonexistent"}}), ConfigError);
}

}  // namespace
}  // namespace lockstep::launcher
