#include "train/main_rank.h"

#include <lockstep/c10d.h>
#include <lockstep/error.h>
#include <lockstep/world.h>

#include "support/config_error.h"
#include "support/rank_threads.h"

namespace lockstep::train {
namespace {

void run_worlds(int ranks, const std::function<void(const World&)>& body) {
  test::run_ranks(ranks, [&](int rank, c10::intrusive_ptr<c10d::Store> store) {
    RankMap map;
    map.rank = rank;
    map.world_size = ranks;
    body(World(map, make_communicator(std::move(store), rank, ranks, {.backend = "shm"}), torch::kCPU));
  });
}

TEST(AnyRankTest, OneRanksWordIsEnough) {
  run_worlds(3, [](const World& world) {
    EXPECT_FALSE(any_rank(world, false));
    EXPECT_TRUE(any_rank(world, world.rank() == 2));
  });
}

TEST(OnMainRankTest, AllRanksGetTheAnswerOrTheErrorAsItWasSaid) {
  run_worlds(3, [](const World& world) {
    int calls = 0;
    EXPECT_EQ(on_main_rank(world, [&] { return ++calls, std::string("folder"); }), "folder");
    EXPECT_EQ(calls, world.is_main() ? 1 : 0);
    EXPECT_EQ(test::error_of([&] {
                on_main_rank(world, []() -> std::string { throw ConfigError("file", "no space: 0"); });
              }),
              "[file] no space: 0");
    EXPECT_EQ(test::error_of(
                  [&] { on_main_rank(world, []() -> std::string { throw std::runtime_error("odd"); }); }),
              "[train] odd");
  });
}

// "said", "silent" or "went on".
std::string outcome_of(const std::function<void()>& body) {
  try {
    body();
    return "went on";
  } catch (const SaidElsewhere& error) {
    return std::string("silent ") + error.what();
  } catch (const ConfigError& error) {
    return std::string("said ") + error.what();
  }
}

TEST(OnMainRankTest, OneRankSpeaks) {
  run_worlds(3, [](const World& world) {
    const std::string outcome = outcome_of(
        [&] { on_main_rank(world, []() -> std::string { throw ConfigError("file", "no space: 0"); }); });
    EXPECT_EQ(outcome, (world.is_main() ? "said " : "silent ") + std::string("[file] no space: 0"));
  });
}

TEST(OnEveryRankTest, TheFirstRankThatFailsSpeaksAndAllEnd) {
  run_worlds(3, [](const World& world) {
    int calls = 0;
    EXPECT_EQ(outcome_of([&] { on_every_rank(world, [&] { ++calls; }); }), "went on");
    EXPECT_EQ(calls, 1);
    const auto failing_from = [&](int first) {
      return outcome_of([&] {
        on_every_rank(world, [&] {
          if (world.rank() >= first) throw ConfigError("images", "none: " + std::to_string(world.rank()));
        });
      });
    };
    EXPECT_EQ(failing_from(0), (world.rank() == 0 ? "said " : "silent ") + std::string("[images] none: 0"));
    EXPECT_EQ(failing_from(1), (world.rank() == 1 ? "said " : "silent ") + std::string("[images] none: 1"));
  });
}

TEST(ThrowOnceTest, WhatAllRanksEndByIsSaidByTheFirstThatHasIt) {
  run_worlds(3, [](const World& world) {
    const auto ending_by = [&](const std::string& text) {
      return outcome_of([&] { throw_once(world, ConfigError("images", text), std::chrono::minutes(1)); });
    };
    EXPECT_EQ(ending_by("none"), (world.rank() == 0 ? "said " : "silent ") + std::string("[images] none"));
    const std::string text = world.rank() == 0 ? "on node 0" : "on node 1";
    EXPECT_EQ(ending_by(text), (world.rank() < 2 ? "said " : "silent ") + std::string("[images] ") + text);
  });
}

TEST(ThrowOnceTest, WhatOnlySomeRanksEndByEachOfThemSays) {
  run_worlds(3, [](const World& world) {
    if (world.rank() == 0) return;
    EXPECT_EQ(
        outcome_of([&] { throw_once(world, ConfigError("images", "none"), std::chrono::milliseconds(1)); }),
        "said [images] none");
  });
}

}  // namespace
}  // namespace lockstep::train
