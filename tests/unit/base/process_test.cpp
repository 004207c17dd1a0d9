#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <fstream>

#include "base/log.h"

namespace lockstep::base {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

ChildProcess shell(const std::string& script) {
  ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  options.environment = Environment::of_process();
  return ChildProcess::start(options);
}

const ExitState& wait_for(ChildProcess& child) {
  while (!child.poll_exit()) {
    pollfd ended{child.exit_fd(), POLLIN, 0};
    ::poll(&ended, 1, -1);
  }
  return child.exit_state();
}

TEST(ProcessTest, TellsExitCodeFromSignal) {
  ChildProcess failing = shell("exit 3");
  EXPECT_EQ(wait_for(failing).status(), 3);
  EXPECT_EQ(failing.exit_state().to_string(), "exit code 3");

  ChildProcess killed = shell("kill -9 $$");
  EXPECT_EQ(wait_for(killed).status(), 128 + SIGKILL);
  EXPECT_EQ(killed.exit_state().to_string(), "signal 9 (SIGKILL)");
}

TEST(ProcessTest, KnowsExitCodesAlsoWhereChildrenWereIgnored) {
  ::signal(SIGCHLD, SIG_IGN);
  ChildProcess failing = shell("exit 3");
  EXPECT_EQ(wait_for(failing).status(), 3);
  ::signal(SIGCHLD, SIG_DFL);
}

TEST(ProcessTest, AChildThatSomebodyElseReapedHasEnded) {
  ChildProcess child = shell("exit 0");
  ASSERT_EQ(::waitpid(child.pid(), nullptr, 0), child.pid());
  EXPECT_FALSE(wait_for(child).success());
}

TEST(ProcessTest, NamesAProgramThatCannotRun) {
  ProcessOptions options;
  options.program = "/no/such/program";
  options.arguments = {"program"};
  EXPECT_THAT([&] { ChildProcess::start(options); },
              ThrowsMessage<ConfigError>(AllOf(HasSubstr("/no/such/program"), HasSubstr("No such file"))));
}

TEST(ProcessTest, GivesTheChildExactlyItsEnvironment) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  ProcessOptions options;
  options.program = "/usr/bin/env";
  options.arguments = {"env"};
  options.environment = Environment{{"ONLY", "this"}};
  options.stdout_fd = write_end.get();
  ChildProcess child = ChildProcess::start(options);
  write_end.reset();
  EXPECT_TRUE(wait_for(child).success());
  char text[256];
  const ssize_t length = ::read(read_end.get(), text, sizeof text);
  EXPECT_EQ(std::string(text, static_cast<size_t>(length)), "ONLY=this\n");
}

TEST(ProcessTest, DestructorEndsTheWholeProcessGroup) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  {
    ProcessOptions options;
    options.program = "/bin/sh";
    options.arguments = {"sh", "-c", "sleep 1000 & echo started; wait"};
    options.environment = Environment::of_process();
    options.stdout_fd = write_end.get();
    ChildProcess child = ChildProcess::start(options);
    write_end.reset();
    char text[16];
    ASSERT_EQ(::read(read_end.get(), text, sizeof text), 8);
  }
  // The grandchild held the pipe too: end of file means that it is gone.
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);
}

// The parent is killed the hard way; its child must not outlive it.
TEST(ProcessTest, ChildDiesWithAKilledParent) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  const pid_t parent = ::fork();
  if (parent == 0) {
    ProcessOptions options;
    options.program = "/bin/sh";
    options.arguments = {"sh", "-c", "echo started; exec sleep 1000"};
    options.environment = Environment::of_process();
    options.stdout_fd = write_end.get();
    ChildProcess child = ChildProcess::start(options);
    write_end.reset();
    ::pause();
    ::_exit(0);
  }
  write_end.reset();
  char text[16];
  ASSERT_EQ(::read(read_end.get(), text, sizeof text), 8);
  ::kill(parent, SIGKILL);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_EQ(::read(read_end.get(), text, sizeof text), 0);
}

TEST(ProcessTest, EndsAChildInTimeOrLeavesItToItself) {
  ChildProcess child = shell("trap '' TERM; exec sleep 1000");
  EXPECT_TRUE(child.end_by(std::chrono::steady_clock::now() + std::chrono::seconds(30)));
  EXPECT_EQ(child.exit_state().status(), 128 + SIGKILL);

  // Without any time it may not have ended yet.
  ChildProcess left = shell("exec sleep 1000");
  const pid_t pid = left.pid();
  if (!left.end_by(std::chrono::steady_clock::now())) {
    EXPECT_EQ(left.pid(), -1);
    left.send_signal(SIGKILL);  // to nobody, above all not to init
    EXPECT_EQ(::waitpid(pid, nullptr, 0), pid);
  }
}

TEST(ProcessTest, AStartThatIsNotWaitedForTellsTheSameLater) {
  ProcessOptions options;
  options.program = "/no/such/program";
  options.arguments = {"program"};
  ChildProcess child = ChildProcess::begin(options);
  pollfd known{child.exec_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&known, 1, -1), 1);
  EXPECT_THAT([&] { child.confirm_exec(); }, ThrowsMessage<ConfigError>(HasSubstr("No such file")));
  EXPECT_EQ(child.exec_fd(), -1);

  ChildProcess good = shell("exit 3");
  EXPECT_EQ(good.exec_fd(), -1);
  EXPECT_EQ(wait_for(good).status(), 3);
}

TEST(ProcessTest, KnowsItsOwnProgram) {
  EXPECT_THAT(own_executable(), HasSubstr("unit_core_tests"));
  EXPECT_THAT(own_arguments().at(0), HasSubstr("unit_core_tests"));
}

}  // namespace
}  // namespace lockstep::base
