#include <gtest/gtest.h>

#include "unit/cluster/captured_environments.h"
#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

// Decides in `outer`, starts every rank of the plan as a launcher would, with its
// variables on top of the outer ones, and returns the maps that the ranks find.
std::vector<RankMap> started_ranks(const PlacementRequest& request, const base::Environment& outer) {
  Placement placement = decide_placement(request, outer, "vm");
  EXPECT_TRUE(placement.spawn.has_value());
  SpawnPlan& plan = *placement.spawn;
  if (plan.rendezvous.kind == Rendezvous::Kind::kNone) {
    plan.rendezvous = {
        .kind = Rendezvous::Kind::kTcp, .address = "127.0.0.1", .port = 40123, .path = "", .listen_fd = 9};
  }
  std::vector<RankMap> maps;
  for (int local_rank = 0; local_rank < plan.local_world_size; ++local_rank) {
    base::Environment environment = outer;
    for (const auto& [name, value] : environment_of_rank(plan, local_rank).values())
      environment.set(name, value);
    const Placement joined = decide_placement(request, environment, "vm");
    EXPECT_FALSE(joined.spawn.has_value());
    EXPECT_TRUE(joined.warnings.empty());
    maps.push_back(joined.map);
  }
  return maps;
}

TEST(RoundTripTest, RanksOfOneMachine) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 3}, {});
  ASSERT_EQ(maps.size(), 3u);
  EXPECT_EQ(describe(maps[0]), "lockstep 0/3 local 0/3 node 0/1 [vm:3] tcp://127.0.0.1:40123 fd 9");
  EXPECT_EQ(describe(maps[1]), "lockstep 1/3 local 1/3 node 0/1 [vm:3] tcp://127.0.0.1:40123");
  EXPECT_EQ(describe(maps[2]), "lockstep 2/3 local 2/3 node 0/1 [vm:3] tcp://127.0.0.1:40123");
}

TEST(RoundTripTest, RanksOfOneNodeOfASlurmStep) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 6}, captured(kSlurmTaskPerNode));
  ASSERT_EQ(maps.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(describe(maps[static_cast<size_t>(i)]),
              fmt::format("lockstep {}/6 local {}/3 node 1/2 [] tcp://node01:23677 job 2.0", 3 + i, i));
  }
}

TEST(RoundTripTest, RanksOfASlurmTaskThatStartsThemAlone) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 2}, captured(kSlurmSecondStep));
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_EQ(describe(maps[0]), "lockstep 0/2 local 0/2 node 0/1 [vm:2] tcp://127.0.0.1:40123 fd 9 job 7.1");
  EXPECT_EQ(describe(maps[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:40123 job 7.1");
}

TEST(RoundTripTest, RanksThatMeetAtTheRequestsPlace) {
  const std::vector<RankMap> at_file = started_ranks({.nprocs = 2, .init_method = "file:///tmp/store"}, {});
  ASSERT_EQ(at_file.size(), 2u);
  EXPECT_EQ(describe(at_file[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] file:///tmp/store");
  const std::vector<RankMap> at_address = started_ranks({.nprocs = 2, .init_method = "tcp://[::1]:4000"}, {});
  ASSERT_EQ(at_address.size(), 2u);
  EXPECT_EQ(describe(at_address[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://[::1]:4000");
}

TEST(RoundTripTest, APlanOfALauncherWithUnequalNodesAndItsOwnStore) {
  SpawnPlan plan;
  plan.world_size = 5;
  plan.first_rank = 3;
  plan.local_world_size = 2;
  plan.node_rank = 1;
  plan.num_nodes = 2;
  plan.job_id = "run-5";
  plan.rendezvous = {.kind = Rendezvous::Kind::kTcp,
                     .address = "head",
                     .port = 29400,
                     .path = "",
                     .agent_hosts_store = true};
  for (int local_rank = 0; local_rank < 2; ++local_rank) {
    const Placement joined = decide_placement({}, environment_of_rank(plan, local_rank), "vm");
    EXPECT_EQ(describe(joined.map),
              fmt::format("lockstep {}/5 local {}/2 node 1/2 [] tcp://head:29400 agent job run-5",
                          3 + local_rank, local_rank));
  }
}

TEST(RoundTripTest, ReplacesTheVariablesOfAnOuterTorchrun) {
  SpawnPlan plan;
  plan.world_size = 2;
  plan.local_world_size = 2;
  plan.rendezvous = {.kind = Rendezvous::Kind::kTcp, .address = "127.0.0.1", .port = 40123, .path = ""};
  base::Environment environment{{"RANK", "7"},           {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "7"},     {"LOCAL_WORLD_SIZE", "8"},
                                {"GROUP_RANK", "3"},     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"MASTER_PORT", "1"},    {"TORCHELASTIC_RESTART_COUNT", "4"},
                                {"MASTER_ADDR", "gone"}, {"TORCHELASTIC_RUN_ID", "outer"}};
  for (const auto& [name, value] : environment_of_rank(plan, 1).values()) environment.set(name, value);
  EXPECT_EQ(describe(decide_placement({}, environment, "vm")),
            "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:40123");
}

TEST(RoundTripTest, ALocalRankOutsideThePlanIsABug) {
  EXPECT_THROW(environment_of_rank(SpawnPlan{}, 1), InternalError);
}

}  // namespace
}  // namespace lockstep::cluster
