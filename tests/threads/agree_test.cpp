#include "comm/agree.h"

#include <lockstep/c10d.h>

#include "support/config_error.h"
#include "support/rank_threads.h"

namespace lockstep::comm {
namespace {

void run_groups(int ranks, const std::function<void(const Communicator&)>& body) {
  test::run_ranks(ranks, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    body(make_communicator(std::move(store), rank, ranks, {.backend = "shm"}));
  });
}

TEST(AnyRankTest, OneRanksWordIsEnough) {
  run_groups(3, [](const Communicator& group) {
    EXPECT_FALSE(any_rank(group, false));
    EXPECT_TRUE(any_rank(group, group.rank() == 2));
  });
}

TEST(OnMainRankTest, AllRanksGetTheAnswerOrTheErrorAsItWasSaid) {
  run_groups(3, [](const Communicator& group) {
    int calls = 0;
    EXPECT_EQ(on_main_rank(group, [&] { return ++calls, std::string("folder"); }), "folder");
    EXPECT_EQ(calls, group.rank() == 0 ? 1 : 0);
    EXPECT_EQ(test::error_of([&] {
                on_main_rank(group, []() -> std::string { throw ConfigError("file", "no space: 0"); });
              }),
              "[file] no space: 0");
    EXPECT_EQ(test::error_of(
                  [&] { on_main_rank(group, []() -> std::string { throw std::runtime_error("odd"); }); }),
              "[train] odd");
  });
}

// "said", "silent" or "went on".
std::string outcome_of(const std::function<void()>& body) {
  try {
    body();
    return "went on";
  } catch (const ReportedElsewhere& error) {
    return std::string("silent ") + error.what();
  } catch (const ConfigError& error) {
    return std::string("said ") + error.what();
  }
}

TEST(OnMainRankTest, OneRankSpeaks) {
  run_groups(3, [](const Communicator& group) {
    const std::string outcome = outcome_of(
        [&] { on_main_rank(group, []() -> std::string { throw ConfigError("file", "no space: 0"); }); });
    EXPECT_EQ(outcome, (group.rank() == 0 ? "said " : "silent ") + std::string("[file] no space: 0"));
  });
}

TEST(OnEveryRankTest, TheFirstRankThatFailsSpeaksAndAllEnd) {
  run_groups(3, [](const Communicator& group) {
    int calls = 0;
    EXPECT_EQ(outcome_of([&] { on_every_rank(group, [&] { ++calls; }); }), "went on");
    EXPECT_EQ(calls, 1);
    const auto failing_from = [&](int first) {
      return outcome_of([&] {
        on_every_rank(group, [&] {
          if (group.rank() >= first) throw ConfigError("images", "none: " + std::to_string(group.rank()));
        });
      });
    };
    EXPECT_EQ(failing_from(0), (group.rank() == 0 ? "said " : "silent ") + std::string("[images] none: 0"));
    EXPECT_EQ(failing_from(1), (group.rank() == 1 ? "said " : "silent ") + std::string("[images] none: 1"));
  });
}

TEST(ThrowOnceTest, WhatAllRanksEndByIsSaidByTheFirstThatHasIt) {
  run_groups(3, [](const Communicator& group) {
    const auto ending_by = [&](const std::string& text) {
      return outcome_of([&] { throw_once(group, ConfigError("images", text), std::chrono::minutes(1)); });
    };
    EXPECT_EQ(ending_by("none"), (group.rank() == 0 ? "said " : "silent ") + std::string("[images] none"));
    const std::string text = group.rank() == 0 ? "on node 0" : "on node 1";
    EXPECT_EQ(ending_by(text), (group.rank() < 2 ? "said " : "silent ") + std::string("[images] ") + text);
  });
}

TEST(ThrowOnceTest, WhatOnlySomeRanksEndByEachOfThemSays) {
  run_groups(3, [](const Communicator& group) {
    if (group.rank() == 0) return;
    EXPECT_EQ(
        outcome_of([&] { throw_once(group, ConfigError("images", "none"), std::chrono::milliseconds(1)); }),
        "said [images] none");
  });
}

}  // namespace
}  // namespace lockstep::comm
