#include "support/process.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace lockstep::test {
namespace {

using std::chrono::seconds;

TEST(Process, ReportsOutputErrorsAndStatus) {
  Process child({"sh", "-c", "read line; echo \"$line $WHO\"; echo bad >&2; exit 3"}, {{"WHO", "world"}});
  child.write_line("hello");
  EXPECT_EQ(child.read_line(seconds(10)), "hello world");
  EXPECT_EQ(child.wait(seconds(10)), (ExitStatus{3, 0}));
  EXPECT_EQ(child.errors(), "bad\n");
  EXPECT_EQ(child.read_line(seconds(10)), std::nullopt);
}

TEST(Process, TimesOutAndDiesBySignal) {
  Process child({"cat"});
  EXPECT_EQ(child.wait(std::chrono::milliseconds(10)), std::nullopt);
  child.signal(SIGKILL);
  EXPECT_EQ(child.wait(seconds(10)), (ExitStatus{-1, SIGKILL}));
}

TEST(Process, IsKilledAndReapedByItsDestructor) {
  pid_t pid = -1;
  {
    Process child({"cat"});
    pid = child.pid();
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST(Process, ThatCannotStartIsAnError) {
  EXPECT_THROW(Process({"/nonexistent/program"}), std::system_error);
}

}  // namespace
}  // namespace lockstep::test
