#include "launch/supervisor.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

base::ChildProcess shell(const std::string& script) {
  base::ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  options.environment = base::Environment::of_process();
  return base::ChildProcess::start(options);
}

std::vector<base::ChildProcess> shells(const std::vector<std::string>& scripts) {
  std::vector<base::ChildProcess> workers;
  for (const std::string& script : scripts) workers.push_back(shell(script));
  return workers;
}

// A process whose job has failed ignores SIGTERM, and so would the children of the next test.
class SupervisorTest : public testing::Test {
 protected:
  ~SupervisorTest() override { ::signal(SIGTERM, SIG_DFL); }
};

TEST_F(SupervisorTest, AllWellIsZero) {
  auto workers = shells({"exit 0", "exit 0"});
  const SupervisorOutcome outcome = supervise(workers);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_FALSE(outcome.first_failure);
}

TEST_F(SupervisorTest, NoticesAnEndAtAnyMoment) {
  for (int i = 0; i < 300; ++i) {
    auto workers = shells({"exit 0", "exit 0", "exit 0"});
    EXPECT_EQ(supervise(workers).status, 0);
  }
}

TEST_F(SupervisorTest, OneFailureEndsTheOthersAndGivesItsCode) {
  auto workers = shells({"exec sleep 1000", "exit 7"});
  const SupervisorOutcome outcome = supervise(workers, {.failure_grace = milliseconds(10)});
  EXPECT_EQ(outcome.status, 7);
  ASSERT_TRUE(outcome.first_failure);
  EXPECT_EQ(outcome.first_failure->worker, 1);
  EXPECT_EQ(workers[0].exit_state().to_string(), "signal 15 (SIGTERM)");
}

TEST_F(SupervisorTest, SignalOfAWorkerIs128PlusItsNumber) {
  auto workers = shells({"kill -SEGV $$", "exec sleep 1000"});
  const SupervisorOutcome outcome = supervise(workers, {.failure_grace = milliseconds(10)});
  EXPECT_EQ(outcome.status, 128 + SIGSEGV);
}

TEST_F(SupervisorTest, KillsAWorkerThatIgnoresTermination) {
  auto workers = shells({"trap '' TERM; while :; do sleep 0.05; done", "exit 1"});
  const SupervisorOutcome outcome =
      supervise(workers, {.failure_grace = milliseconds(10), .termination_grace = milliseconds(100)});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_EQ(workers[0].exit_state().to_string(), "signal 9 (SIGKILL)");
}

TEST_F(SupervisorTest, GivesSurvivorsTimeToEndByThemselves) {
  auto workers = shells({"exit 4", "sleep 0.1; exit 5"});
  const SupervisorOutcome outcome = supervise(workers, {.failure_grace = std::chrono::minutes(1)});
  EXPECT_EQ(outcome.status, 4);
  EXPECT_EQ(workers[1].exit_state().to_string(), "exit code 5");
}

TEST_F(SupervisorTest, PassesStopSignalsOn) {
  // Blocked here as in supervise(), so that an early signal waits for it.
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  // The worker says that it is ready by sending us what we are to pass on.
  auto workers = shells(
      {"trap 'exit 9' TERM; kill -TERM " + std::to_string(::getpid()) + "; while :; do sleep 0.05; done"});
  const SupervisorOutcome outcome = supervise(workers);
  EXPECT_EQ(outcome.status, 128 + SIGTERM);
  EXPECT_EQ(workers[0].exit_state().to_string(), "exit code 9");
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

TEST_F(SupervisorTest, WorkersThatSaveAtAStopSignalArePreempted) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  const std::string end_us = "kill -TERM " + std::to_string(::getpid());
  auto workers =
      shells({"exec sleep 1000", "trap 'exit 75' TERM; " + end_us + "; while :; do sleep 0.05; done"});
  EXPECT_EQ(supervise(workers).status, 75);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  ::raise(SIGTERM);  // does not end this process any more
}

TEST_F(SupervisorTest, NotifySignalsDoNotStopTheJob) {
  sigset_t set;
  ::sigemptyset(&set);
  ::sigaddset(&set, SIGUSR1);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  auto workers = shells(
      {"trap 'exit 0' USR1; kill -USR1 " + std::to_string(::getpid()) + "; while :; do sleep 0.05; done"});
  EXPECT_EQ(supervise(workers).status, 0);
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

}  // namespace
}  // namespace lockstep::launcher
