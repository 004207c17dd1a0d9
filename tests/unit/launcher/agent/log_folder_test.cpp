#include "launcher/agent/log_folder.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <optional>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

namespace fs = std::filesystem;

class LogFolderTest : public testing::Test {
 protected:
  LogFolderTest() {
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    ::setenv("TMPDIR", temporary_.c_str(), 1);
  }
  ~LogFolderTest() override {
    if (before_) {
      ::setenv("TMPDIR", before_->c_str(), 1);
    } else {
      ::unsetenv("TMPDIR");
    }
  }

  // Makes one in a process that ends without removing it, and returns its root.
  fs::path leave_behind(bool keep) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const LogFolder folder("", "killed", keep);
      ::_exit(0);  // no destructor runs, as after SIGKILL
    }
    ::waitpid(pid, nullptr, 0);
    return fs::directory_iterator(temporary_)->path();
  }

  const test::TemporaryFolder folder_;
  const fs::path temporary_ = folder_.path();
  std::optional<std::string> before_;
};

TEST_F(LogFolderTest, IsGoneInTheEnd) {
  {
    const LogFolder folder("", "run", /*keep=*/false);
    EXPECT_TRUE(fs::exists(folder.path()));
  }
  EXPECT_TRUE(fs::is_empty(temporary_));
}

TEST_F(LogFolderTest, WhatAKilledLauncherLeftIsRemovedByTheNext) {
  const fs::path left = leave_behind(/*keep=*/false);
  ASSERT_TRUE(fs::exists(left));
  const LogFolder folder("", "run", /*keep=*/false);
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(fs::exists(folder.path()));
}

TEST_F(LogFolderTest, LogsThatAreKeptStay) {
  const fs::path left = leave_behind(/*keep=*/true);
  const LogFolder folder("", "run", /*keep=*/false);
  EXPECT_TRUE(fs::exists(left));
}

TEST_F(LogFolderTest, WhatALivingLauncherUsesStays) {
  const LogFolder first("", "run", /*keep=*/false);
  const LogFolder second("", "run", /*keep=*/false);
  EXPECT_TRUE(fs::exists(first.path()));
}

// Each looks for stale folders while others make theirs.
TEST_F(LogFolderTest, LaunchersThatStartAtOnceDoNotDisturbEachOther) {
  std::vector<pid_t> pids;
  for (int process = 0; process < 8; ++process) {
    pids.push_back(::fork());
    if (pids.back() != 0) continue;
    bool good = true;
    for (int i = 0; i < 50; ++i) {
      try {
        LogFolder folder("", "run", /*keep=*/false);
        folder.make_attempt(0, 2);
        good = good && fs::exists(folder.worker(0, 1));
      } catch (const std::exception&) {
        good = false;
      }
    }
    ::_exit(good ? 0 : 1);
  }
  for (const pid_t pid : pids) {
    int status = 1;
    ::waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_TRUE(fs::is_empty(temporary_));
}

TEST_F(LogFolderTest, FoldersOfOthersStay) {
  fs::create_directories(temporary_ / "lockstep_of_mine");
  const LogFolder folder("", "run", /*keep=*/false);
  EXPECT_TRUE(fs::exists(temporary_ / "lockstep_of_mine"));
}

}  // namespace
}  // namespace lockstep::launcher
