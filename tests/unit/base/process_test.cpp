#include "base/process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include "base/log.h"
#include "support/refused_calls.h"

namespace lockstep::base {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

ProcessOptions shell_options(const std::string& script) {
  ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  options.environment = Environment::of_process();
  return options;
}

ChildProcess shell(const std::string& script) { return ChildProcess::start(shell_options(script)); }

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
  // The grandchild held the pipe too, so the end of the stream means that it has ended.
  char byte;
  EXPECT_EQ(::read(read_end.get(), &byte, 1), 0);
}

// The parent is killed with SIGKILL; its child must not outlive it.
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

  // At a deadline of now it may not have ended yet.
  ChildProcess left = shell("exec sleep 1000");
  const pid_t pid = left.pid();
  if (!left.end_by(std::chrono::steady_clock::now())) {
    EXPECT_EQ(left.pid(), -1);
    left.send_signal(SIGKILL);  // must reach no process, above all not init
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

TEST(ProgramTest, KeepsBothStreamsAndTheExitCode) {
  const auto result = run_program(shell_options("echo out; echo err >&2; exit 3"), minutes(1));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->output, "out\n");
  EXPECT_EQ(result->errors, "err\n");
  EXPECT_EQ(result->state.code, 3);
}

TEST(ProgramTest, ReadsMoreThanAPipeHolds) {
  const auto result =
      run_program(shell_options("head -c 300000 /dev/zero; head -c 200000 /dev/zero >&2"), minutes(1));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->output.size(), 300000);
  EXPECT_EQ(result->errors.size(), 200000);
}

TEST(ProgramTest, WaitsForNobodyThatTheProgramLeavesBehind) {
  const auto result = run_program(shell_options("echo done; sleep 1000 & exit 0"), minutes(1));
  ASSERT_TRUE(result);
  EXPECT_EQ(result->output, "done\n");
}

TEST(ProgramTest, KillsWhatTakesTooLong) {
  EXPECT_EQ(run_program(shell_options("exec sleep 1000"), milliseconds(50)).has_value(), false);
}

TEST(ProgramTest, NoticesTheEndOnAKernelWithoutPidfd) {
  std::thread([] {
    test::refuse_call({.number = SYS_pidfd_open, .error = ENOSYS});  // before 5.3
    ASSERT_EQ(::syscall(SYS_pidfd_open, ::getpid(), 0), -1);
    // A grandchild keeps the streams open, so only the end of the program itself can be noticed.
    const auto result = run_program(shell_options("echo done; sleep 1000 & exit 3"), minutes(1));
    ASSERT_TRUE(result);
    EXPECT_EQ(result->output, "done\n");
    EXPECT_EQ(result->state.code, 3);
    EXPECT_FALSE(run_program(shell_options("exec sleep 1000"), milliseconds(50)));
  }).join();
}

TEST(ProgramTest, FindsProgramsByPath) {
  EXPECT_EQ(find_program("sh", {{"PATH", "/nonexistent:/bin"}}), "/bin/sh");
  EXPECT_EQ(find_program("sh", {{"PATH", "/nonexistent"}}), std::nullopt);
  EXPECT_TRUE(find_program("sh", {}).has_value());
}

TEST(ProcessStateTest, NamesWithAnyCharactersDoNotMatter) {
  const auto before = process_state("/proc/thread-self");
  ASSERT_TRUE(before);
  EXPECT_EQ(before->state, 'R');
  EXPECT_GT(before->start_time, 0u);
  std::array<char, 16> name{};
  ::prctl(PR_GET_NAME, name.data());
  ::prctl(PR_SET_NAME, "a) Z 1\n(2");
  const auto renamed = process_state("/proc/thread-self");
  ::prctl(PR_SET_NAME, name.data());
  ASSERT_TRUE(renamed);
  EXPECT_EQ(renamed->state, 'R');
  EXPECT_EQ(renamed->start_time, before->start_time);
  EXPECT_FALSE(process_state("/proc/0"));
}

}  // namespace
}  // namespace lockstep::base
