#include "launcher/agent/slurm_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(SlurmShareTest, NothingIsCheckedOutsideAJob) {
  EXPECT_THAT(check_slurm_share({{"CUDA_VISIBLE_DEVICES", "0"}}, 1000), IsEmpty());
}

TEST(SlurmShareTest, RanksAreComparedWithTheGpusThatSlurmGave) {
  const base::Environment job{{"SLURM_JOB_ID", "7"}, {"SLURM_GPUS_ON_NODE", "2"}};
  EXPECT_THAT(check_slurm_share(job, 4),
              Contains(HasSubstr("4 ranks of this node share 2 GPUs: ask for --gpus-per-node=4")));
  EXPECT_THAT(check_slurm_share(job, 2), Not(Contains(HasSubstr("share 2 GPUs"))));
}

TEST(SlurmShareTest, HiddenGpusDoNotCount) {
  const base::Environment job{
      {"SLURM_JOB_ID", "7"}, {"SLURM_GPUS_ON_NODE", "4"}, {"CUDA_VISIBLE_DEVICES", "0,1"}};
  EXPECT_THAT(check_slurm_share(job, 4), Contains(HasSubstr("4 ranks of this node share 2 GPUs")));
}

TEST(SlurmShareTest, TheVariableThatSlurmSetsForAmdCounts) {
  const base::Environment job{
      {"SLURM_JOB_ID", "7"}, {"SLURM_GPUS_ON_NODE", "8"}, {"ROCR_VISIBLE_DEVICES", "0,1"}};
  EXPECT_THAT(check_slurm_share(job, 4), Contains(HasSubstr("4 ranks of this node share 2 GPUs")));
}

TEST(SlurmShareTest, MemoryIsSharedByAllRanks) {
  EXPECT_THAT(
      check_slurm_share({{"SLURM_JOB_ID", "7"}, {"SLURM_MEM_PER_NODE", "1500"}}, 2),
      Contains(HasSubstr("2 ranks of this node have 750 MiB each and need 1024: ask for --mem=2048M")));
}

}  // namespace
}  // namespace lockstep::launcher
