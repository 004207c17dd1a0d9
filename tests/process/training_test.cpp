// Whole trainings as processes: killed, interrupted, preempted, out of space, and gone on.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <signal.h>
#include <sys/file.h>

#include <fstream>
#include <functional>
#include <random>
#include <regex>
#include <sstream>
#include <thread>

#include "checkpoint/catalog.h"
#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::microseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The children of this process that run this program.
std::vector<pid_t> children_named(const std::string& program, pid_t parent) {
  std::istringstream children(
      read_file(fmt::format("/proc/{0}/task/{0}/children", static_cast<int>(parent))));
  std::vector<pid_t> found;
  for (pid_t child = 0; children >> child;) {
    if (read_file(fmt::format("/proc/{}/comm", static_cast<int>(child))) == program + "\n") {
      found.push_back(child);
    }
  }
  return found;
}

// The step from which a run reports to resume; -1: it reports none.
int64_t step_gone_on_from(const std::string& output) {
  std::smatch match;
  const std::regex line("Going on from .*: [0-9]+ of [0-9]+ epochs are done, ([0-9]+) steps\n");
  return std::regex_search(output, match, line) ? std::stoll(match[1]) : -1;
}

// How a run that was killed ends at last.
struct EndOfRun {
  std::vector<std::string> options;
  std::string line;  // of its output
};

class TrainingTest : public testing::Test {
 protected:
  std::filesystem::path folder(const std::string& name) const { return folder_.path() / name; }

  Process start(const std::string& name, std::vector<std::string> more) const {
    std::vector<std::string> arguments = {
        program_path("sine"), "--compute_setup", "cpu", "--log_folder",  folder(name).string(),
        "--log_model",        "--write_every",   "0",   "--print_every", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Process(arguments, {{"OMP_NUM_THREADS", std::nullopt}});
  }

  static ExitStatus finish(Process& process) {
    const auto status = process.wait(seconds(120));
    EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
    return status.value_or(ExitStatus{});
  }

  void wait_until_saved(const std::string& name) const {
    const auto deadline = steady_clock::now() + seconds(60);
    while (!std::filesystem::exists(folder(name) / "checkpoints" / "latest")) {
      ASSERT_LT(steady_clock::now(), deadline) << "no checkpoint is made";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  // Until no process of the run is left: the system ends the ranks after their parent.
  void wait_until_free(const std::string& name) const {
    const auto lock = folder(name) / "checkpoints/lock";
    const auto deadline = steady_clock::now() + seconds(30);
    while (steady_clock::now() < deadline) {
      const int fd = ::open(lock.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0) return;
      const bool free = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
      ::close(fd);
      if (free) return;
      std::this_thread::yield();
    }
    FAIL() << "a process still holds " << lock;
  }

  // The step of the newest checkpoint, of which every byte is right; 0: there is none.
  int64_t newest_step(const std::string& name) const {
    const auto checkpoints = folder(name) / "checkpoints";
    for (const checkpoint::Entry& entry : checkpoint::list(checkpoints)) {
      EXPECT_TRUE(entry.valid()) << entry.path << ": " << entry.problem;
    }
    const auto newest = checkpoint::newest_valid(checkpoints);
    return newest ? newest->step : 0;
  }

  // Kills a run again and again, which would not end by itself. What was saved stays whole, and the run that
  // is left alone ends, with the options of `end`, as one that nobody killed.
  void kill_and_compare(const std::vector<std::string>& options, int kills,
                        const std::function<EndOfRun(int64_t newest)>& end);

  std::string weights(const std::string& name) const { return read_file(folder(name) / "model.safetensors"); }

  TemporaryFolder folder_{"/dev/shm"};
};

constexpr const char* kForever = "1000000000";

void TrainingTest::kill_and_compare(const std::vector<std::string>& options, int kills,
                                    const std::function<EndOfRun(int64_t newest)>& end) {
  std::vector<std::string> endless = options;
  endless.insert(endless.end(), {"--max_iter", kForever});
  // All at once, as a machine goes that is switched off, or one rank, which the others notice.
  std::mt19937 random(20261115);
  int ranks_killed = 0;
  int64_t newest = 0;
  for (int kill = 0; kill < kills; ++kill) {
    Process victim = start("killed", endless);
    // Also before the first line: while it starts, or while it loads a checkpoint.
    if (kill % 5 != 0) ASSERT_TRUE(victim.read_line(seconds(60))) << victim.errors();
    // However slow the machine is, there is something to go on from.
    if (kill % 5 == 1) ASSERT_NO_FATAL_FAILURE(wait_until_saved("killed"));
    const auto moment =
        steady_clock::now() + microseconds(std::uniform_int_distribution<int>(0, 40000)(random));
    while (steady_clock::now() < moment) std::this_thread::yield();
    const std::vector<pid_t> ranks = children_named("sine", victim.pid());
    const bool one_rank = kill % 2 == 1 && !ranks.empty();
    // A child that ended stays one until its parent looks, so no other process has its number.
    one_rank ? (void)::kill(ranks[random() % ranks.size()], SIGKILL) : victim.signal(SIGKILL);
    ranks_killed += finish(victim).code > 0 && one_rank ? 1 : 0;
    ASSERT_NO_FATAL_FAILURE(wait_until_free("killed"));
    const int64_t step = newest_step("killed");
    ASSERT_GE(step, newest) << "what was saved is gone after kill " << kill;
    newest = step;
  }
  EXPECT_GT(ranks_killed, 0) << "no rank was killed alone";
  const EndOfRun last_end = end(newest);
  std::vector<std::string> ending = options;
  ending.insert(ending.end(), last_end.options.begin(), last_end.options.end());
  Process straight = start("straight", ending);
  ASSERT_EQ(finish(straight), ExitStatus{.code = 0}) << straight.errors();
  EXPECT_THAT(straight.output(), HasSubstr(last_end.line));
  Process last = start("killed", ending);
  ASSERT_EQ(finish(last), ExitStatus{.code = 0}) << last.errors();
  EXPECT_EQ(step_gone_on_from(last.output()), newest);
  EXPECT_THAT(last.output(), HasSubstr(last_end.line));
  ASSERT_FALSE(weights("straight").empty());
  EXPECT_EQ(weights("killed"), weights("straight"));
}

// At least ten epochs, of four steps, after the last kill.
EndOfRun some_epochs_later(int64_t newest) {
  const int64_t epochs = newest / 4 + 11;
  return {{"--max_iter", std::to_string(epochs)},
          fmt::format("Trained {} epochs ({} steps)", epochs, 4 * epochs)};
}

TEST_F(TrainingTest, KilledAtFiftyMomentsEndsOnTheSameBits) {
  kill_and_compare({"--nprocs", "2", "--checkpoint_every_steps", "50"}, 50, some_epochs_later);
}

// Every rank writes its part of each checkpoint.
TEST_F(TrainingTest, KilledWithDividedStatesEndsOnTheSameBits) {
  kill_and_compare({"--nprocs", "2", "--checkpoint_every_steps", "50", "--zero_stage", "2"}, 20,
                   some_epochs_later);
}

TEST_F(TrainingTest, CtrlCEndsAfterTheStepWithACheckpoint) {
  const std::vector<std::string> forever = {"--nprocs",           "2",         "--max_iter", "1000000000",
                                            "--checkpoint_every", "1000000000"};
  Process process = start("run", forever);
  ASSERT_TRUE(process.read_line(seconds(60)));
  process.signal(SIGINT);
  finish(process);
  EXPECT_THAT(process.output(), HasSubstr("stopped: interrupted")) << process.errors();
  std::smatch match;
  const std::string output = process.output();
  ASSERT_TRUE(std::regex_search(output, match, std::regex("\\(([0-9]+) steps\\)"))) << output;
  Process again = start("run", {"--max_iter", "0", "--nprocs", "2"});
  finish(again);
  EXPECT_THAT(again.output(), HasSubstr(", " + match[1].str() + " steps\n")) << "went on from that step";
}

// Saved by rank 0's clock, at any step of an epoch, and ended in the middle of one.
TEST_F(TrainingTest, KilledBetweenSavesByTimeItEndsAtItsLimitOfSteps) {
  kill_and_compare({"--nprocs", "2", "--checkpoint_every_min", "0.001"}, 4, [](int64_t newest) {
    const int64_t steps = newest / 4 * 4 + 41;
    return EndOfRun{{"--max_iter", kForever, "--max_steps", std::to_string(steps)},
                    fmt::format("({} steps)", steps)};
  });
}

TEST_F(TrainingTest, PreemptionSavesAndTheNextRunGoesOn) {
  Process process = start("run", {"--nprocs", "2", "--max_iter", "1000000000", "--checkpoint_every",
                                  "1000000000", "--hyperparams", "lr=0.25"});
  ASSERT_TRUE(process.read_line(seconds(60)));
  process.signal(SIGUSR1);
  EXPECT_EQ(finish(process), ExitStatus{.code = kExitPreempted}) << process.errors();
  EXPECT_THAT(
      read_file(folder("run") / "metrics.jsonl"),
      testing::ContainsRegex("\"hyperparameters\":.*\"lr\":0.25.*\n.*\"hyperparameters\":.*\"lr\":0.25"))
      << "at the start, and with the metrics at the interruption";
  // Saved at the step at which the ranks agreed to leave, which is where the next run begins.
  const std::string latest = read_file(folder("run") / "checkpoints" / "latest");
  ASSERT_THAT(latest, testing::MatchesRegex("step-[0-9]+\n"));
  const int64_t step = std::stoll(latest.substr(5));
  EXPECT_GT(step, 0);
  Process again = start("run", {"--max_iter", std::to_string(step / 4 + 2), "--checkpoint_every_steps", "1",
                                "--checkpoint_keep", "100", "--nprocs", "2"});
  EXPECT_EQ(finish(again), ExitStatus{.code = 0}) << again.errors();
  EXPECT_EQ(step_gone_on_from(again.output()), step);
  // No step is left out and none is done twice.
  EXPECT_TRUE(std::filesystem::exists(folder("run") / "checkpoints" / fmt::format("step-{:010}", step + 1)));
  EXPECT_THAT(again.output(), HasSubstr(fmt::format("({} steps)", (step / 4 + 2) * 4)));
}

TEST_F(TrainingTest, RestartedByItsLauncherItFindsItsFolderAgain) {
  Process launcher(
      {program_path("lockstep"), "run", "-n", "2", "--max-restarts", "1", program_path("sine"),
       "--compute_setup", "cpu", "--root_folder", folder_.path().string(), "--max_iter", "1000000000",
       "--checkpoint_every_steps", "50", "--write_every", "0", "--print_every", "1000"},
      {{"OMP_NUM_THREADS", std::nullopt}});
  const auto wait_for = [&launcher](const std::string& text) {
    const auto deadline = steady_clock::now() + seconds(60);
    while (steady_clock::now() < deadline) {
      const auto line = launcher.read_line(seconds(60));
      if (!line) return false;
      if (line->find(text) != std::string::npos) return true;
    }
    return false;
  };
  ASSERT_TRUE(wait_for("Iteration")) << launcher.errors();
  const std::vector<pid_t> ranks = children_named("sine", launcher.pid());
  ASSERT_EQ(ranks.size(), 2u);
  ASSERT_EQ(::kill(ranks[0], SIGKILL), 0);
  EXPECT_TRUE(wait_for("Going on from")) << launcher.output() << launcher.errors();
}

// A batch script with a loop over learning rates, without srun: one job, several programs.
TEST_F(TrainingTest, EachProgramOfASlurmJobTrains) {
  const auto train = [this](const std::string& rate, const std::string& restarts) {
    Process process(
        {program_path("sine"), "--compute_setup", "cpu", "--root_folder", folder_.path().string(),
         "--max_iter", "3", "--checkpoint_every", "1", "--write_every", "0", "--hyperparams", "lr=" + rate},
        {{"OMP_NUM_THREADS", std::nullopt}, {"SLURM_JOB_ID", "7"}, {"SLURM_RESTART_COUNT", restarts}});
    EXPECT_EQ(finish(process), ExitStatus{.code = 0}) << process.errors();
    return process.output();
  };
  EXPECT_THAT(train("0.1", "0"), testing::Not(HasSubstr("Going on from")));
  const std::string second = train("0.2", "0");
  EXPECT_THAT(second, testing::Not(HasSubstr("Going on from")));
  EXPECT_THAT(second, HasSubstr("sine_job7-2\n"));
  EXPECT_THAT(train("0.1", "1"), HasSubstr("3 of 3 epochs are done")) << "the job was queued again";
}

TEST_F(TrainingTest, ADiskThatIsFullLosesNothingAndEndsNothing) {
  Process first = start("run", {"--max_iter", "5", "--checkpoint_every", "5"});
  ASSERT_EQ(finish(first), ExitStatus{.code = 0});
  // No file may grow beyond this: what a full disk does, without root.
  Process process({"env", "--ignore-signal=XFSZ", "prlimit", "--fsize=4096:unlimited", program_path("sine"),
                   "--compute_setup", "cpu", "--log_folder", folder("run").string(), "--max_iter", "20",
                   "--checkpoint_every", "5", "--write_every", "0"},
                  {{"OMP_NUM_THREADS", std::nullopt}});
  EXPECT_EQ(finish(process), ExitStatus{.code = 0}) << process.errors();
  EXPECT_THAT(process.errors(),
              HasSubstr("a checkpoint was not saved; the previous one stays, and training continues"));
  EXPECT_THAT(process.output(), HasSubstr("Trained 20 epochs"));
  Process again = start("run", {"--max_iter", "20"});
  EXPECT_EQ(finish(again), ExitStatus{.code = 0}) << again.errors();
  EXPECT_THAT(again.output(), HasSubstr("5 of 20 epochs are done"));
}

TEST_F(TrainingTest, ASecondRunInTheFolderIsToldWhoHasIt) {
  Process first = start("run", {"--max_iter", "1000000000", "--checkpoint_every", "1"});
  ASSERT_TRUE(first.read_line(seconds(60)));
  Process second = start("run", {"--max_iter", "1", "--checkpoint_every", "1"});
  EXPECT_EQ(finish(second), ExitStatus{.code = kExitUsage});
  EXPECT_THAT(second.errors(), HasSubstr(std::to_string(first.pid())));
}

TEST_F(TrainingTest, ThreeRanksWhereTwoWereAskedForAreRefused) {
  Process process({"mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "3", program_path("sine"),
                   "--nprocs", "2", "--compute_setup", "cpu"},
                  {{"OMP_NUM_THREADS", std::nullopt},
                   {"LOCKSTEP_ROOT_FOLDER", folder("runs").string()},
                   kExcuseMpiLeaks});
  EXPECT_EQ(finish(process).code, kExitUsage);
  EXPECT_THAT(process.errors(), HasSubstr("nprocs"));
  Process device = start("run", {"--compute_setup", "tpu"});
  EXPECT_EQ(finish(device).code, kExitUsage);
  EXPECT_THAT(device.errors(), HasSubstr("compute_setup must be one of cpu, gpu, auto: 'tpu'"));
}

}  // namespace
}  // namespace lockstep::test
