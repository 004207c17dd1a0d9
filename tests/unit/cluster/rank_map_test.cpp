#include <gtest/gtest.h>
#include <lockstep/rank_map.h>

namespace lockstep {
namespace {

TEST(RankMapTest, NamesTheLaunchers) {
  EXPECT_STREQ(to_string(Launcher::kExplicit), "explicit");
  EXPECT_STREQ(to_string(Launcher::kTorchrun), "torchrun");
  EXPECT_STREQ(to_string(Launcher::kLockstep), "lockstep");
  EXPECT_STREQ(to_string(Launcher::kSlurm), "slurm");
  EXPECT_STREQ(to_string(Launcher::kMpi), "mpi");
  EXPECT_STREQ(to_string(Launcher::kSingle), "single");
}

TEST(RankMapTest, WritesTheRendezvousAsUrl) {
  Rendezvous rendezvous;
  EXPECT_EQ(rendezvous.to_string(), "none");
  rendezvous.kind = Rendezvous::Kind::kTcp;
  rendezvous.address = "head";
  rendezvous.port = 29500;
  EXPECT_EQ(rendezvous.to_string(), "tcp://head:29500");
  rendezvous.address = "fd00::1";
  EXPECT_EQ(rendezvous.to_string(), "tcp://[fd00::1]:29500");
  rendezvous.kind = Rendezvous::Kind::kFile;
  rendezvous.path = "/shared/store";
  EXPECT_EQ(rendezvous.to_string(), "file:///shared/store");
}

TEST(RankMapTest, TellsEverythingAboutARank) {
  RankMap map;
  map.launcher = Launcher::kSlurm;
  map.rank = 2;
  map.world_size = 3;
  map.node_rank = 1;
  map.num_nodes = 2;
  map.nodes = {"node01", "node02"};
  map.ranks_per_node = {2, 1};
  map.host = "vm";
  map.job_id = "7.0";
  map.restart_count = 1;
  map.rendezvous.kind = Rendezvous::Kind::kTcp;
  map.rendezvous.address = "node01";
  map.rendezvous.port = 27806;
  EXPECT_EQ(map.to_string(),
            "launcher    slurm, job 7.0, restart 1\n"
            "rank        2 of 3 on vm\n"
            "local rank  0 of 1\n"
            "node        1 of 2\n"
            "nodes       node01 (2), node02 (1)\n"
            "rendezvous  tcp://node01:27806\n");
}

TEST(RankMapTest, SaysWhatNobodyTold) {
  RankMap map;
  map.launcher = Launcher::kMpi;
  map.rank = 1;
  map.world_size = 2;
  map.node_rank = -1;
  map.num_nodes = 0;
  map.host = "vm";
  map.rendezvous.kind = Rendezvous::Kind::kFile;
  map.rendezvous.path = "/s";
  EXPECT_EQ(map.to_string(),
            "launcher    mpi\n"
            "rank        1 of 2 on vm\n"
            "local rank  0 of 1\n"
            "node        unknown\n"
            "rendezvous  file:///s\n");
}

TEST(RankMapTest, ShortensLongNodeLists) {
  RankMap map;
  for (int i = 0; i < 100; ++i) {
    map.nodes.push_back("n" + std::to_string(i));
    map.ranks_per_node.push_back(4);
  }
  EXPECT_NE(map.to_string().find("n7 (4) and 92 more\n"), std::string::npos) << map.to_string();
}

}  // namespace
}  // namespace lockstep
