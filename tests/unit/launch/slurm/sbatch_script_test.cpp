#include "launch/slurm/sbatch_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <sstream>

#include "base/program.h"

namespace lockstep::launcher {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr SlurmStyle kStyles[] = {SlurmStyle::kTorchrun, SlurmStyle::kSrun, SlurmStyle::kSpawn};

SbatchRequest full_request(SlurmStyle style) {
  SbatchRequest request{.command = {"./sine", "--lr", "0.1"}};
  request.style = style;
  request.nodes = 2;
  request.gpus_per_node = "a100:4";
  request.cpus_per_task = 8;
  request.mem = "64G";
  request.time = "1:00:00";
  request.partition = "gpu";
  request.account = "nn1234k";
  request.array = "0-9%2";
  request.signal = "USR1@120";
  request.requeue = true;
  request.modules = {"gcc/12", "cuda/13"};
  request.version = SlurmVersion{22, 5};
  return request;
}

std::vector<std::string> directives(const std::string& script) {
  std::vector<std::string> found;
  std::istringstream lines(script);
  for (std::string line; std::getline(lines, line);) {
    if (line.rfind("#SBATCH ", 0) == 0) found.push_back(line.substr(8));
  }
  return found;
}

TEST(SbatchScriptTest, AllStylesAskForTheSameAllocation) {
  for (const SlurmStyle style : kStyles) {
    EXPECT_THAT(
        directives(sbatch_script(full_request(style))),
        testing::ElementsAre("--job-name=sine", "--partition=gpu", "--account=nn1234k", "--array=0-9%2",
                             "--output=%x-%A_%a.out", "--open-mode=append", "--nodes=2",
                             "--ntasks-per-node=4", "--gpus-per-node=a100:4", "--cpus-per-task=8",
                             "--mem=64G", "--time=1:00:00", "--signal=USR1@120", "--requeue"));
  }
}

TEST(SbatchScriptTest, TheLeastRequest) {
  EXPECT_THAT(directives(sbatch_script({.command = {"/opt/my program"}})),
              testing::ElementsAre("--job-name=\"my program\"", "--output=%x-%j.out", "--open-mode=append",
                                   "--nodes=1", "--ntasks-per-node=1"));
}

TEST(SbatchScriptTest, DirectivesStandBeforeTheFirstCommand) {
  // sbatch stops reading them there.
  bool command_seen = false;
  std::istringstream lines(sbatch_script(full_request(SlurmStyle::kSpawn)));
  for (std::string line; std::getline(lines, line);) {
    const bool is_directive = line.rfind("#SBATCH", 0) == 0;
    EXPECT_FALSE(command_seen && is_directive) << line;
    command_seen = command_seen || (!line.empty() && line.front() != '#');
  }
}

TEST(SbatchScriptTest, EachStyleStartsInItsWay) {
  const std::string torchrun = sbatch_script(full_request(SlurmStyle::kTorchrun));
  EXPECT_THAT(torchrun,
              HasSubstr("lockstep run --nproc-per-node=\"$SLURM_NTASKS_PER_NODE\" ./sine --lr 0.1\n"));
  EXPECT_THAT(torchrun, HasSubstr("--ntasks=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=1"));
  const std::string srun = sbatch_script(full_request(SlurmStyle::kSrun));
  EXPECT_THAT(
      srun,
      HasSubstr("srun --kill-on-bad-exit=1 --wait=0 ${gpu_bind:+\"$gpu_bind\"} \\\n  ./sine --lr 0.1\n"));
  const std::string spawn = sbatch_script(full_request(SlurmStyle::kSpawn));
  EXPECT_THAT(spawn,
              HasSubstr("export LOCKSTEP_NPROCS=\"$((SLURM_JOB_NUM_NODES * SLURM_NTASKS_PER_NODE))\"\n"));
  EXPECT_THAT(
      spawn,
      HasSubstr("--cpus-per-task=\"$((${SLURM_CPUS_PER_TASK:-1} * SLURM_NTASKS_PER_NODE))\" \\\n  ./sine"));
}

// In the environment, which others do not see; a command line is everybody's.
TEST(SbatchScriptTest, JobsGetASecretThatNoCommandLineShows) {
  for (const SlurmStyle style : kStyles) {
    const std::string script = sbatch_script(full_request(style));
    EXPECT_THAT(script, HasSubstr("\nexport LOCKSTEP_JOB_TOKEN\n"));
    EXPECT_THAT(script.substr(script.find("\nsrun ")), Not(HasSubstr("TOKEN")));
  }
}

TEST(SbatchScriptTest, TellsSrunWhatItForgets) {
  const auto text = [](std::optional<SlurmVersion> version) {
    SbatchRequest request = full_request(SlurmStyle::kSrun);
    request.version = version;
    return sbatch_script(request);
  };
  const auto tells = HasSubstr("export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\n");
  EXPECT_THAT(text(SlurmVersion{21, 8}), Not(tells));
  EXPECT_THAT(text(SlurmVersion{22, 5}), tells);
  EXPECT_THAT(text(SlurmVersion{23, 2}), tells);
  EXPECT_THAT(text(SlurmVersion{23, 11}), Not(tells));
  EXPECT_THAT(text(std::nullopt), tells) << "not known: the text that is right everywhere";
}

TEST(SbatchScriptTest, OldSlurmKnowsGpusAsGres) {
  SbatchRequest request = full_request(SlurmStyle::kSrun);
  request.version = SlurmVersion{18, 8};
  const std::string script = sbatch_script(request);
  EXPECT_THAT(script, HasSubstr("#SBATCH --gres=gpu:a100:4\n"));
  EXPECT_THAT(script, Not(HasSubstr("--gpu-bind")));
}

TEST(SbatchScriptTest, QueuesAgainOnlyWhereAsked) {
  EXPECT_THAT(sbatch_script(full_request(SlurmStyle::kSrun)), HasSubstr("if [ \"$status\" -eq 75 ]; then"));
  EXPECT_THAT(sbatch_script({.command = {"x"}}), Not(HasSubstr("requeue")));
}

TEST(SbatchScriptTest, ContainerHoldsTheProgramOnly) {
  SbatchRequest request = full_request(SlurmStyle::kTorchrun);
  request.container = "my image.sif";
  EXPECT_THAT(sbatch_script(request),
              HasSubstr("\" \"$runtime\" exec --nv 'my image.sif' ./sine --lr 0.1\n"));
  request.gpus_per_node = "";
  EXPECT_THAT(sbatch_script(request), HasSubstr(" exec 'my image.sif' ./sine"));
}

std::string words_given_to_srun(const std::string& script, const std::string& variables = "");

TEST(SbatchScriptTest, TurnsOffGpuBindingWhereSomethingBinds) {
  const std::string script = sbatch_script({.command = {"x"}, .gpus_per_node = "4"});
  EXPECT_THAT(words_given_to_srun(script), Not(HasSubstr("gpu-bind")));
  EXPECT_THAT(words_given_to_srun(script, "SLURM_GPU_BIND=single:1"), HasSubstr("<--gpu-bind=none>\n"));
  EXPECT_THAT(words_given_to_srun(script, "SLURM_GPUS_PER_TASK=1"), HasSubstr("<--gpu-bind=none>\n"));
}

// Runs the script under bash with a srun that shows its words, one a line.
std::string words_given_to_srun(const std::string& script, const std::string& variables) {
  base::ProcessOptions options;
  options.program = "/bin/bash";
  options.arguments = {"bash", "-c",
                       "srun() { for word in \"$@\"; do printf '<%s>\\n' \"$word\"; done; }\n"
                       "SLURM_JOB_NUM_NODES=2 SLURM_NTASKS_PER_NODE=4 SLURM_CPUS_PER_TASK=8 SLURM_JOB_ID=7 " +
                           variables + "\n" + script};
  options.environment = base::Environment{{"PATH", "/usr/bin:/bin"}};
  const auto result = base::run_program(options, std::chrono::minutes(1));
  EXPECT_TRUE(result && result->state.success());
  EXPECT_EQ(result->errors, "");
  return result->output;
}

TEST(SbatchScriptTest, ValuesStayData) {
  const std::vector<std::string> nasty{"$HOME", "$(echo x)",   "`echo x`",
                                       "a\nb",  "it's \"so\"", "\\",
                                       "",      "# no",        "gr\u00fc\u00df \u4e16\u754c",
                                       "*",     ";exit 1",     "\n#SBATCH --nodes=99",
                                       "-n"};
  for (const SlurmStyle style : kStyles) {
    SbatchRequest request{.command = {"./a program's\nname"}, .style = style};
    request.command.insert(request.command.end(), nasty.begin(), nasty.end());
    request.launcher = "/opt/my tools/lockstep";
    request.job_name = "$(echo x) `echo x` \"'\\";
    std::string expected = "<" + request.command.front() + ">\n";
    for (const std::string& word : nasty) expected += "<" + word + ">\n";
    EXPECT_THAT(words_given_to_srun(sbatch_script(request)), testing::EndsWith(expected));
  }
}

TEST(SbatchScriptTest, CountsComeFromSlurm) {
  const std::string words =
      words_given_to_srun(sbatch_script({.command = {"x"}, .nodes = 3, .cpus_per_task = 5}));
  EXPECT_THAT(words, HasSubstr("<--ntasks=2>\n<--ntasks-per-node=1>\n<--cpus-per-task=32>\n"));
  EXPECT_THAT(words, HasSubstr("<--nproc-per-node=4>\n"));
}

TEST(SbatchScriptTest, RefusesWhatADirectiveCannotHold) {
  EXPECT_THROW(sbatch_script({.command = {"x"}, .job_name = "a\n#SBATCH --nodes=99"}), ConfigError);
  EXPECT_THROW(sbatch_script({.command = {"x"}, .output = "a\nb"}), ConfigError);
  EXPECT_THAT(sbatch_script({.command = {"a\nb"}}), HasSubstr("--job-name=lockstep\n"));
}

}  // namespace
}  // namespace lockstep::launcher
