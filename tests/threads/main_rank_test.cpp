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

}  // namespace
}  // namespace lockstep::train
