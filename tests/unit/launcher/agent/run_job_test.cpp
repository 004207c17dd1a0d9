#include "launcher/agent/run_job.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

// Jobs as lockstep::launch runs them, with shell scripts as ranks; in each script $FOLDER is the
// test's folder and $TEST the process of the test.
class RunJobTest : public testing::Test {
 protected:
  RunJobTest() {
    ::setenv("FOLDER", folder_.path().c_str(), 1);
    ::setenv("TEST", std::to_string(::getpid()).c_str(), 1);
  }
  // run_job() leaves these signals ignored, and the children of the next test would inherit that.
  ~RunJobTest() override {
    ::signal(SIGTERM, SIG_DFL);
    ::signal(SIGPIPE, SIG_DFL);
  }

  static RunOptions job_of(const std::vector<std::string>& scripts) {
    cluster::SpawnPlan plan;
    plan.world_size = plan.local_world_size = static_cast<int>(scripts.size());
    plan.nodes = {"here"};
    plan.ranks_per_node = {plan.world_size};
    RunOptions options = spawn_options(plan);
    std::string script = "case $RANK in ";
    for (size_t i = 0; i < scripts.size(); ++i) script += fmt::format("{}) {};; ", i, scripts[i]);
    options.command = {"/bin/sh", {"sh", "-c", script + "esac"}};
    options.failure_grace = milliseconds(10);
    return options;
  }
  bool has(const std::string& file) const { return std::filesystem::exists(folder_.path() / file); }

  test::TemporaryFolder folder_;
};

// Blocks a signal as run_job() does, so that an early one waits for it.
class Blocked {
 public:
  explicit Blocked(int signal) {
    ::sigemptyset(&set_);
    ::sigaddset(&set_, signal);
    ::pthread_sigmask(SIG_BLOCK, &set_, nullptr);
  }
  ~Blocked() { ::pthread_sigmask(SIG_UNBLOCK, &set_, nullptr); }

 private:
  sigset_t set_;
};

constexpr char kForever[] = "while :; do sleep 0.05; done";

TEST_F(RunJobTest, AllWellIsZero) { EXPECT_EQ(run_job(job_of({"exit 0", "exit 0"})), 0); }

TEST_F(RunJobTest, NoticesAnEndAtAnyMoment) {
  for (int i = 0; i < 100; ++i) EXPECT_EQ(run_job(job_of({"exit 0", "exit 0", "exit 0"})), 0);
}

TEST_F(RunJobTest, OneFailureEndsTheOthersAndGivesItsCode) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(run_job(job_of({std::string("exec sleep 1000"), "exit 7"})), 7);
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("[launch] rank 1 (local rank 1 of node 0, here, pid "), std::string::npos) << said;
  EXPECT_NE(said.find(") failed first: exit code 7\n"), std::string::npos) << said;
}

TEST_F(RunJobTest, SignalOfAWorkerIs128PlusItsNumber) {
  EXPECT_EQ(run_job(job_of({"kill -SEGV $$", "exec sleep 1000"})), 128 + SIGSEGV);
}

TEST_F(RunJobTest, KillsAWorkerThatIgnoresTermination) {
  RunOptions job = job_of({"trap '' TERM; touch $FOLDER/deaf; " + std::string(kForever),
                           "while [ ! -e $FOLDER/deaf ]; do sleep 0.01; done; exit 1"});
  job.shutdown_timeout = milliseconds(100);
  EXPECT_EQ(run_job(job), 1);
}

TEST_F(RunJobTest, GivesSurvivorsTimeToEndByThemselves) {
  RunOptions job = job_of({"exit 4", "sleep 0.1; touch $FOLDER/by-itself; exit 5"});
  job.failure_grace = std::chrono::minutes(1);
  EXPECT_EQ(run_job(job), 4);
  EXPECT_TRUE(has("by-itself"));
}

TEST_F(RunJobTest, AStopSignalEndsTheTimeThatSurvivorsHave) {
  const Blocked blocked(SIGTERM);
  RunOptions job = job_of(
      {"exit 4", "trap 'touch $FOLDER/told; exit 0' TERM; kill -TERM $TEST; " + std::string(kForever)});
  job.failure_grace = std::chrono::minutes(10);
  run_job(job);
  EXPECT_TRUE(has("told"));
}

TEST_F(RunJobTest, PassesStopSignalsOn) {
  const Blocked blocked(SIGTERM);
  // The worker signals that it is ready by sending the signal that must be passed on.
  EXPECT_EQ(
      run_job(job_of({"trap 'touch $FOLDER/told; exit 9' TERM; kill -TERM $TEST; " + std::string(kForever)})),
      128 + SIGTERM);
  EXPECT_TRUE(has("told"));
}

TEST_F(RunJobTest, WorkersThatSaveAtAStopSignalArePreempted) {
  {
    const Blocked blocked(SIGTERM);
    EXPECT_EQ(run_job(job_of(
                  {"exec sleep 1000", "trap 'exit 75' TERM; kill -TERM $TEST; " + std::string(kForever)})),
              75);
  }
  ::raise(SIGTERM);  // does not end this process any more
}

TEST_F(RunJobTest, NotifySignalsDoNotStopTheJob) {
  const Blocked blocked(SIGUSR1);
  EXPECT_EQ(run_job(job_of({"trap 'exit 0' USR1; kill -USR1 $TEST; " + std::string(kForever)})), 0);
}

TEST_F(RunJobTest, WorkersWriteToOurOwnStreams) {
  RunOptions job = job_of({"[ $(readlink /proc/$$/fd/1) = $(readlink /proc/$TEST/fd/1) ]",
                           "[ $(readlink /proc/$$/fd/2) = $(readlink /proc/$TEST/fd/2) ]"});
  EXPECT_EQ(run_job(job), 0);
}

TEST_F(RunJobTest, OnlyRankZeroInheritsTheStoresSocket) {
  EXPECT_EQ(run_job(job_of({"[ -S /proc/$$/fd/$LOCKSTEP_STORE_FD ]", "[ -z \"$LOCKSTEP_STORE_FD\" ]"})), 0);
}

TEST_F(RunJobTest, WhatAWorkerLeavesInASessionOfItsOwnIsKilled) {
  EXPECT_EQ(run_job(job_of(
                {"setsid sh -c 'echo $$ > $FOLDER/pid; exec sleep 1000' & "
                 "while [ ! -s $FOLDER/pid ]; do sleep 0.01; done; cp $FOLDER/pid $FOLDER/other; exit 0"})),
            0);
  std::ifstream file(folder_.path() / "other");
  pid_t pid = 0;
  ASSERT_TRUE(file >> pid);
  // Killed by us and reaped by init: gone, or a zombie for a moment.
  std::ifstream status("/proc/" + std::to_string(pid) + "/stat");
  std::string number, name, state;
  status >> number >> name >> state;
  EXPECT_TRUE(state.empty() || state == "Z" || state == "X") << state;
}

}  // namespace
}  // namespace lockstep::launcher
