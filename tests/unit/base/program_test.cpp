#include "base/program.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "support/refused_calls.h"

namespace lockstep::base {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;

ProcessOptions shell_options(const std::string& script) {
  ProcessOptions options;
  options.program = "/bin/sh";
  options.arguments = {"sh", "-c", script};
  options.environment = Environment::of_process();
  return options;
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
    // A child that keeps the streams open: only the program's own end can be noticed.
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

}  // namespace
}  // namespace lockstep::base
