#include "base/progress.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace lockstep::base {
namespace {

// There is one Progress per process, so each case runs in a separate process.
template <typename Worker>
void as_worker(int fd, Worker worker) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("LOCKSTEP_PROGRESS_FD", std::to_string(fd).c_str(), 1);
    worker(Progress::of_process());
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_EQ(status, 0);
}

TEST(ProgressTest, NothingIsToldBeforeAWorkerWrites) {
  const ProgressWatch watch;
  EXPECT_FALSE(watch.look().reports);
  EXPECT_FALSE(watch.look().waits());
}

TEST(ProgressTest, TheLauncherSeesWhatTheWorkerDoes) {
  const ProgressWatch watch;
  as_worker(watch.fd(), [](Progress& progress) {
    progress.set_step(7);
    progress.set_phase(Phase::kBackward);
    progress.collective_started("reduce_scatter");
    progress.collective_started("all_reduce");
    progress.collective_finished();
  });
  const ProgressWatch::Snapshot seen = watch.look();
  EXPECT_TRUE(seen.reports);
  EXPECT_EQ(seen.step, 7);
  EXPECT_STREQ(to_string(seen.phase), "backward");
  EXPECT_EQ(seen.collectives_started, 2u);
  EXPECT_EQ(seen.collectives_finished, 1u);
  EXPECT_EQ(seen.operation, "all_reduce");
  EXPECT_TRUE(seen.waits());
}

TEST(ProgressTest, ANameOfAnyLengthIsCut) {
  const ProgressWatch watch;
  as_worker(watch.fd(), [](Progress& progress) { progress.collective_started("0123456789abcdefgh"); });
  EXPECT_EQ(watch.look().operation, "0123456789abcdef");
}

TEST(ProgressTest, ADescriptorThatIsSomethingElseIsLeftAlone) {
  const int file = ::dup(STDERR_FILENO);
  as_worker(file, [](Progress& progress) { progress.set_step(1); });
  as_worker(99999, [](Progress& progress) { progress.set_step(1); });
  ::close(file);
}

}  // namespace
}  // namespace lockstep::base
