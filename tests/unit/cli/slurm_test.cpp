#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <vector>

#include "cli/commands.h"

namespace lockstep::cli {
namespace {

using testing::HasSubstr;

// What the command prints, or the error's text.
std::string slurm_says(std::vector<const char*> words) {
  words.insert(words.begin(), {"lockstep slurm", "--slurm-version", "22.05"});
  testing::internal::CaptureStdout();
  try {
    run_slurm(static_cast<int>(words.size()), words.data());
    return testing::internal::GetCapturedStdout();
  } catch (const std::exception& error) {
    return testing::internal::GetCapturedStdout() + error.what();
  }
}

TEST(SlurmCommandTest, FlagsReachTheScript) {
  const std::string script = slurm_says({"--style", "srun", "--nodes", "2", "--module", "a", "--module", "b",
                                         "./sine", "--nodes", "9", "--", "x"});
  EXPECT_THAT(script, HasSubstr("for Slurm 22.05.\n"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --nodes=2\n"));
  EXPECT_THAT(script, HasSubstr("module load a || exit\nmodule load b || exit\n"));
  EXPECT_THAT(script, HasSubstr("  ./sine --nodes 9 -- x\n"));
}

TEST(SlurmCommandTest, FlagsOfTheSitesPagesReachTheScript) {
  const std::string script = slurm_says({"--nodes",
                                         "3",
                                         "--gres",
                                         "gpu:2",
                                         "--mail-type",
                                         "begin",
                                         "--mail-type=begin,end",
                                         "--mail-user",
                                         "me@site",
                                         "--error",
                                         "e.err",
                                         "--exclusive",
                                         "--module-purge",
                                         "--conda",
                                         "torch-env",
                                         "--style",
                                         "srun",
                                         "--cpu-bind",
                                         "cores",
                                         "--sbatch-option",
                                         "reservation=r",
                                         "--sbatch-option",
                                         "--no-kill",
                                         "x"});
  for (const char* line :
       {"#SBATCH --gres=gpu:2\n", "#SBATCH --ntasks-per-node=2\n", "#SBATCH --mail-type=begin,end\n",
        "#SBATCH --mail-user=me@site\n", "#SBATCH --error=e.err\n", "#SBATCH --exclusive\n", "module purge\n",
        "conda activate torch-env", "--cpu-bind=cores", "#SBATCH --reservation=r\n", "#SBATCH --no-kill\n"}) {
    EXPECT_THAT(script, HasSubstr(line));
  }
  EXPECT_THAT(slurm_says({"--gpus", "8", "--nodes", "2", "--hint", "nomultithread", "--container", "a.sif",
                          "--bind", "/scratch", "--bind", "/a:/b", "--venv", "env", "x"}),
              HasSubstr(" exec --nv --bind=/scratch --bind=/a:/b a.sif bash -c "));
  EXPECT_THAT(slurm_says({"--hint", "some", "x"}), HasSubstr("nomultithread"));
}

TEST(SlurmCommandTest, TheVendorOfTheGpusReachesTheContainer) {
  EXPECT_THAT(slurm_says({"--gpus-per-node", "8", "--gpu-vendor", "amd", "--container", "a.sif", "x"}),
              HasSubstr(" exec --rocm a.sif x\n"));
  EXPECT_THAT(slurm_says({"--gpus-per-node", "8", "--container", "a.sif", "x"}),
              HasSubstr(" exec --nv a.sif x\n"));
  EXPECT_THAT(slurm_says({"--gpus-per-node", "8", "--gpu-vendor", "intel", "x"}),
              HasSubstr("--gpu-vendor must be one of nvidia, amd: 'intel'"));
}

TEST(SlurmCommandTest, WhatFollowsTwoDashesIsTheProgram) {
  EXPECT_THAT(slurm_says({"--style=srun", "--", "./sine", "--wait", "--", "--help"}),
              HasSubstr("  ./sine --wait -- --help\n"));
  EXPECT_THAT(slurm_says({"--", "--sine"}), HasSubstr("must not begin with a dash"));
}

TEST(SlurmCommandTest, ErrorsNameFlagAndValue) {
  EXPECT_THAT(slurm_says({"--bogus", "3", "--", "x"}),
              HasSubstr("not expected: --bogus; lockstep slurm --help lists the options"));
  EXPECT_THAT(slurm_says({"--nodes", "two", "--", "x"}),
              HasSubstr("--nodes must be a whole number from 1 to 1048576: 'two'"));
  EXPECT_THAT(slurm_says({"--mem", "", "--", "x"}), HasSubstr("--mem must not be empty"));
  EXPECT_THAT(slurm_says({"--cpus-per-task=", "--", "x"}), HasSubstr("--cpus-per-task must not be empty"));
  EXPECT_THAT(slurm_says({"--ntask-per-node", "2", "x"}), HasSubstr("did you mean '--ntasks-per-node'?"));
  EXPECT_THAT(slurm_says({"--style", "mpi", "--", "x"}),
              HasSubstr("--style must be one of torchrun, srun, spawn: 'mpi'"));
  EXPECT_THAT(slurm_says({"--slurm-version", "new", "--", "x"}), HasSubstr("--slurm-version"));
  EXPECT_THAT(slurm_says({"--job-name", "a\nb", "--", "x"}), HasSubstr("--job-name must be one line"));
  EXPECT_THAT(slurm_says({"--nodes"}), HasSubstr("--nodes"));
  EXPECT_THAT(slurm_says({}), HasSubstr("the program is missing"));
}

TEST(SlurmCommandTest, FlagsWithoutEffectAreRefused) {
  EXPECT_THAT(slurm_says({"--wait", "--", "x"}), HasSubstr("--wait has no effect without --submit"));
  EXPECT_THAT(slurm_says({"--test-only", "--submit", "--", "x"}), HasSubstr("--test-only submits nothing"));
}

TEST(SlurmCommandTest, HelpListsTheFlags) {
  const std::string help = slurm_says({"--help"});
  for (const char* flag :
       {"--nodes", "--gpus-per-node", "--array", "--requeue", "--style", "--submit", "--wait"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
}

}  // namespace
}  // namespace lockstep::cli
