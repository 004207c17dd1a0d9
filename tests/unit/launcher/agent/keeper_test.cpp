#include "launcher/agent/keeper.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "base/process.h"

namespace lockstep::launcher {
namespace {

base::ChildProcess sleeper(const std::string& name, const std::string& value) {
  base::ProcessOptions options;
  options.program = "/bin/sleep";
  options.arguments = {"sleep", "1000"};
  options.environment.set("BEFORE", "x");
  options.environment.set(name, value);
  return base::ChildProcess::start(options);
}

base::ExitState wait(base::ChildProcess& process) {
  while (!process.poll_exit()) ::usleep(1000);
  return process.exit_state();
}

TEST(LeftoversTest, ThoseWithTheMarkAreKilledAndNobodyElse) {
  const std::string mark = "LEFTOVERS_TEST_" + std::to_string(::getpid());
  base::ChildProcess marked = sleeper(mark, "/tmp/a/0"), other = sleeper(mark, "/tmp/b/0"),
                     longer = sleeper("X" + mark, "/tmp/a/0"), text = sleeper("Y", mark + "=/tmp/a/0");
  kill_leftovers(mark + "=/tmp/a/");
  EXPECT_EQ(wait(marked).to_string(), "signal 9 (SIGKILL)");
  for (base::ChildProcess* process : {&other, &longer, &text}) {
    EXPECT_FALSE(process->poll_exit());
    process->send_signal(SIGTERM);
    EXPECT_EQ(wait(*process).to_string(), "signal 15 (SIGTERM)") << "the first signal that it got";
  }
}

}  // namespace
}  // namespace lockstep::launcher
