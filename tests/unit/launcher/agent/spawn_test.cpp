#include "launcher/agent/run_job.h"

#include <gtest/gtest.h>

#include "launcher/agent/worker_command.h"
#include "unit/cluster/captured_environments.h"
#include "unit/cluster/placement_case.h"

namespace lockstep::launcher {
namespace {

using cluster::captured;
using cluster::decide_placement;
using cluster::describe;
using cluster::Placement;
using cluster::PlacementRequest;
using cluster::SpawnPlan;

base::Environment environment_of(const base::Environment& outer, const SpawnPlan& plan, int local_rank) {
  const RunOptions options = spawn_options(plan);
  Generation map = *options.known_map;
  if (map.master_port == 0) map.master_port = 40123;
  return worker_environment(outer, options, map, local_rank, "/error.json");
}

// Decides in `outer`, starts every rank of the plan, with its variables on top of the
// outer ones, and returns the maps that the ranks find.
std::vector<RankMap> started_ranks(const PlacementRequest& request, const base::Environment& outer) {
  const Placement placement = decide_placement(request, outer, "vm");
  EXPECT_TRUE(placement.spawn.has_value());
  std::vector<RankMap> maps;
  for (int local_rank = 0; local_rank < placement.spawn->local_world_size; ++local_rank) {
    const Placement joined =
        decide_placement(request, environment_of(outer, *placement.spawn, local_rank), "vm");
    EXPECT_FALSE(joined.spawn.has_value());
    EXPECT_TRUE(joined.warnings.empty());
    maps.push_back(joined.map);
  }
  return maps;
}

TEST(SpawnTest, RanksOfOneMachine) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 3}, {});
  ASSERT_EQ(maps.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(describe(maps[static_cast<size_t>(i)]),
              fmt::format("lockstep {0}/3 local {0}/3 node 0/1 [vm:3] tcp://127.0.0.1:40123", i));
  }
}

TEST(SpawnTest, RanksOfOneNodeOfASlurmStep) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 6}, captured(cluster::kSlurmTaskPerNode));
  ASSERT_EQ(maps.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(describe(maps[static_cast<size_t>(i)]),
              fmt::format("lockstep {}/6 local {}/3 node 1/2 [] tcp://node01:23677 job 2.0", 3 + i, i));
  }
}

TEST(SpawnTest, RanksOfASlurmTaskThatStartsThemAlone) {
  const std::vector<RankMap> maps = started_ranks({.nprocs = 2}, captured(cluster::kSlurmSecondStep));
  ASSERT_EQ(maps.size(), 2u);
  EXPECT_EQ(describe(maps[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:40123 job 7.1");
}

TEST(SpawnTest, RanksThatMeetAtTheRequestsPlace) {
  const std::vector<RankMap> at_file = started_ranks({.nprocs = 2, .init_method = "file:///tmp/store"}, {});
  ASSERT_EQ(at_file.size(), 2u);
  EXPECT_EQ(describe(at_file[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] file:///tmp/store");
  const std::vector<RankMap> at_address = started_ranks({.nprocs = 2, .init_method = "tcp://[::1]:4000"}, {});
  ASSERT_EQ(at_address.size(), 2u);
  EXPECT_EQ(describe(at_address[1]), "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://[::1]:4000");
}

TEST(SpawnTest, RanksThatMeetInAFileGetNoAddress) {
  const Placement placement = decide_placement({.nprocs = 2, .init_method = "file:///tmp/store"}, {}, "vm");
  const base::Environment environment = environment_of({}, *placement.spawn, 0);
  EXPECT_FALSE(environment.has("MASTER_ADDR"));
  EXPECT_FALSE(environment.has("MASTER_PORT"));
}

TEST(SpawnTest, HangsAreReportedWhereAllRanksAreHere) {
  const Placement here = decide_placement({.nprocs = 3}, {}, "vm");
  EXPECT_EQ(spawn_options(*here.spawn).stall_timeout, std::chrono::seconds(30));
  EXPECT_EQ(spawn_options(*here.spawn).on_stall, RunOptions::OnStall::kReport);
  const Placement step = decide_placement({.nprocs = 6}, captured(cluster::kSlurmTaskPerNode), "vm");
  EXPECT_EQ(spawn_options(*step.spawn).stall_timeout, std::chrono::seconds(0));
}

TEST(SpawnTest, ReplacesTheVariablesOfAnOuterTorchrun) {
  SpawnPlan plan;
  plan.world_size = 2;
  plan.local_world_size = 2;
  plan.nodes = {"vm"};
  plan.ranks_per_node = {2};
  const base::Environment outer{{"RANK", "7"},           {"WORLD_SIZE", "8"},
                                {"LOCAL_RANK", "7"},     {"LOCAL_WORLD_SIZE", "8"},
                                {"GROUP_RANK", "3"},     {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                {"MASTER_PORT", "1"},    {"TORCHELASTIC_RESTART_COUNT", "4"},
                                {"MASTER_ADDR", "gone"}, {"TORCHELASTIC_RUN_ID", "outer"}};
  EXPECT_EQ(describe(decide_placement({}, environment_of(outer, plan, 1), "vm")),
            "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:40123");
}

}  // namespace
}  // namespace lockstep::launcher
