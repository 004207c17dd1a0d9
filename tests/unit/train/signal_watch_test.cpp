#include "train/signal_watch.h"

#include <signal.h>

#include <optional>

namespace lockstep::train {
namespace {

bool is_default(int signal) {
  struct sigaction action {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler == SIG_DFL;
}

TEST(SignalWatchTest, NotesTheSignalInsteadOfDyingOfIt) {
  const SignalWatch watch({SIGUSR1, SIGUSR2});
  EXPECT_EQ(watch.received(), 0);
  ::raise(SIGUSR2);
  EXPECT_EQ(watch.received(), SIGUSR2);
  EXPECT_EQ(watch.received(), SIGUSR2) << "asking does not forget";
}

TEST(SignalWatchTest, SeesOnlyWhatCameInItsLife) {
  {
    const SignalWatch earlier({SIGUSR1});
    ::raise(SIGUSR1);
  }
  EXPECT_EQ(SignalWatch({SIGUSR1}).received(), 0);
}

TEST(SignalWatchTest, TheLastOnePutsBackWhatWasThere) {
  ASSERT_TRUE(is_default(SIGUSR1));
  std::optional<SignalWatch> first(std::in_place, std::vector<int>{SIGUSR1});
  std::optional<SignalWatch> second(std::in_place, std::vector<int>{SIGUSR1});
  first.reset();
  EXPECT_FALSE(is_default(SIGUSR1));
  ::raise(SIGUSR1);
  EXPECT_EQ(second->received(), SIGUSR1);
  second.reset();
  EXPECT_TRUE(is_default(SIGUSR1));
}

}  // namespace
}  // namespace lockstep::train
