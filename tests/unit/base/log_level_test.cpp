#include <gtest/gtest.h>

#include <cstdlib>

#include "base/log.h"

namespace lockstep::base {
namespace {

// The variables are read once, so each case runs in a process of its own.
int level_of_process(const char* own, const char* torchrun) {
  ::unsetenv("LOCKSTEP_LOG_LEVEL");
  ::unsetenv("LOGLEVEL");
  if (own != nullptr) ::setenv("LOCKSTEP_LOG_LEVEL", own, 1);
  if (torchrun != nullptr) ::setenv("LOGLEVEL", torchrun, 1);
  set_log_identity({.rank = 1, .world_size = 2, .host = "host"});
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (log_enabled(level)) return static_cast<int>(level);
  }
  return -1;
}

TEST(LogLevelTest, TorchrunsVariableCountsWhereOursIsNotSet) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto is = [](LogLevel level) { return testing::ExitedWithCode(static_cast<int>(level)); };
  EXPECT_EXIT(std::_Exit(level_of_process(nullptr, nullptr)), is(LogLevel::kWarning), "");
  EXPECT_EXIT(std::_Exit(level_of_process(nullptr, "INFO")), is(LogLevel::kInfo), "");
  EXPECT_EXIT(std::_Exit(level_of_process(nullptr, "debug")), is(LogLevel::kDebug), "");
  EXPECT_EXIT(std::_Exit(level_of_process(nullptr, "CRITICAL")), is(LogLevel::kError), "");
  EXPECT_EXIT(std::_Exit(level_of_process("error", "DEBUG")), is(LogLevel::kError), "");
  EXPECT_EXIT(std::_Exit(level_of_process("nonsense", "INFO")), is(LogLevel::kInfo), "");
}

}  // namespace
}  // namespace lockstep::base
