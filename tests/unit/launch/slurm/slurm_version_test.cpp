#include "launch/slurm/slurm_version.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

TEST(SlurmVersionTest, ReadsWhatSlurmPrints) {
  EXPECT_EQ(parse_slurm_version("slurm 22.05.8\n"), (SlurmVersion{22, 5}));
  EXPECT_EQ(parse_slurm_version("slurm-wlm 22.05.8\n"), (SlurmVersion{22, 5}));
  EXPECT_EQ(parse_slurm_version("slurm 24.11.0-0rc1"), (SlurmVersion{24, 11}));
  EXPECT_EQ(parse_slurm_version("23.11"), (SlurmVersion{23, 11}));
  EXPECT_EQ(parse_slurm_version("23.11")->to_string(), "23.11");
  EXPECT_EQ(parse_slurm_version("22.05")->to_string(), "22.05");
}

TEST(SlurmVersionTest, RefusesTheRest) {
  for (const char* text :
       {"", "slurm", "22", "22.", ".05", "22.5", "22.13", "22.00", "x.05", "slurm 22.05x", "-1.05"}) {
    EXPECT_EQ(parse_slurm_version(text), std::nullopt) << "'" << text << "'";
  }
}

TEST(SlurmVersionTest, KnowsWhoForgets) {
  EXPECT_FALSE(srun_forgets_cpus_per_task({21, 8}));
  EXPECT_TRUE(srun_forgets_cpus_per_task({22, 5}));
  EXPECT_TRUE(srun_forgets_cpus_per_task({23, 2}));
  EXPECT_FALSE(srun_forgets_cpus_per_task({23, 11}));
  EXPECT_FALSE(has_gpu_options({18, 8}));
  EXPECT_TRUE(has_gpu_options({19, 5}));
}

TEST(SlurmVersionTest, WithoutSlurmItIsUnknown) {
  EXPECT_EQ(installed_slurm_version({{"PATH", "/nonexistent"}}), std::nullopt);
}

}  // namespace
}  // namespace lockstep::launcher
