// Meetings whose last rank comes when the others lose patience: what ranks see of each other
// depends on the moment, what they answer must not.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/c10d.h>
#include <lockstep/error.h>

#include <atomic>
#include <barrier>
#include <future>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "support/rank_threads.h"

namespace lockstep {
namespace {

using std::chrono::milliseconds;
using test::run_ranks;

// As far away as a server: calls `after_check` with what it looked for and whether it was there.
class DistantStore : public c10d::HashStore {
 public:
  using AfterCheck = std::function<void(const std::string& key, bool found)>;
  explicit DistantStore(AfterCheck after_check) : after_check_(std::move(after_check)) {}

  bool check(const std::vector<std::string>& keys) override {
    const bool found = HashStore::check(keys);
    after_check_(keys.at(0), found);
    return found;
  }

 private:
  const AfterCheck after_check_;
};

Communicator group_of(const c10::intrusive_ptr<c10d::Store>& store, int rank, int ranks) {
  return make_communicator(store, rank, ranks, {.backend = "shm"});
}

std::string answer(Communicator& group, const std::string& purpose, milliseconds patience) {
  try {
    group.meet(purpose, patience);
    return "all came";
  } catch (const ConfigError&) {
    return "refused";
  }
}

// Rank 0 has seen that the last one is missing, and before it can say so the last one comes and
// sees all of them.
TEST(MeetingTest, WhoSawItFirstDecidesForAll) {
  constexpr int kRanks = 4;
  std::promise<void> missed;
  std::promise<void> left;
  std::atomic<bool> is_missed = false;
  const auto store = c10::make_intrusive<DistantStore>([&](const std::string& key, bool found) {
    if (found || !key.ends_with("meeting/save/0/3") || is_missed.exchange(true)) return;
    missed.set_value();
    left.get_future().wait();
  });
  std::vector<std::string> answers(kRanks);
  run_ranks(kRanks, [&](int rank, const c10::intrusive_ptr<c10d::Store>&) {
    Communicator group = group_of(store, rank, kRanks);
    if (rank == kRanks - 1) missed.get_future().wait();
    answers[static_cast<size_t>(rank)] =
        answer(group, "save", rank == 0 ? milliseconds(1) : std::chrono::hours(1));
    if (rank == kRanks - 1) left.set_value();
  });
  EXPECT_THAT(answers, testing::Each("all came"));
}

// The same left to chance, with ranks that come one after the other until about the time when
// the first of them gives up.
TEST(MeetingTest, ManyRanksAroundTheDeadlineAgree) {
  constexpr int kRanks = 6;
  constexpr int kRounds = 40;
  constexpr milliseconds kPatience{3};
  const auto store = c10::make_intrusive<DistantStore>(
      [](const std::string&, bool) { std::this_thread::sleep_for(std::chrono::microseconds(200)); });
  std::vector<std::atomic<int>> met(kRounds);
  std::barrier round_begins(kRanks);
  run_ranks(kRanks, [&](int rank, const c10::intrusive_ptr<c10d::Store>&) {
    Communicator group = group_of(store, rank, kRanks);
    for (int round = 0; round < kRounds; ++round) {
      round_begins.arrive_and_wait();
      const auto comes = std::chrono::steady_clock::now() + kPatience * rank * round / (kRounds * 2);
      std::this_thread::sleep_until(comes);
      const bool came = answer(group, "round " + std::to_string(round), kPatience) == "all came";
      met[static_cast<size_t>(round)] += came ? 1 : 0;
    }
  });
  for (const auto& count : met) EXPECT_THAT(count.load(), testing::AnyOf(0, kRanks));
}

}  // namespace
}  // namespace lockstep
