
#include "cluster/placement_rules.h"

#include <gtest/gtest.h>

#include <set>

#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

TEST(DerivedPortTest, StaysBelowTheEphemeralRange) {
  for (int job = 0; job < 20000; ++job) {
    const int port = derived_port("slurm/" + std::to_string(job));
    ASSERT_GE(port, 20000);
    ASSERT_LE(port, 32767);
  }
}

TEST(DerivedPortTest, OffsetsOfOneIdentityNeverCollide) {
  std::set<int> ports;
  for (int step = 0; step < kNumDerivedPorts; ++step)
    ports.insert(derived_port("slurm/7", static_cast<uint64_t>(step)));
  EXPECT_EQ(ports.size(), static_cast<size_t>(kNumDerivedPorts));
}

TEST(DerivedPortTest, ConsecutiveJobsSpread) {
  std::set<int> ports;
  for (int job = 1000; job < 1100; ++job) ports.insert(derived_port("slurm/" + std::to_string(job)));
  EXPECT_GE(ports.size(), 98u);
}

TEST(LoopbackTest, KnowsTheNamesOfThisMachine) {
  for (const char* address : {"localhost", "127.0.0.1", "127.0.1.1", "::1"})
    EXPECT_TRUE(is_loopback(address)) << address;
  for (const char* address : {"vm", "10.0.0.1", "1270.0.0.1", "localhost.example", "::2"}) {
    EXPECT_FALSE(is_loopback(address)) << address;
  }
}

// --- where ranks get their common secret ---

const base::Environment kByVariables{
    {"RANK", "1"},        {"WORLD_SIZE", "2"},          {"LOCAL_RANK", "1"},
    {"MASTER_PORT", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"LOCAL_WORLD_SIZE", "2"}};
const base::Environment kByStep =
    with(kSlurmOneNode, {{"SLURM_CLUSTER_NAME", "big"}, {"SLURM_RESTART_COUNT", "3"}});
const base::Environment kByMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                               {"OMPI_COMM_WORLD_SIZE", "2"},
                               {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                               {"PMIX_NAMESPACE", "prterun-vm-12@1"}};

std::string secret_of(const base::Environment& environment) {
  const Rendezvous meeting = decide_placement({}, environment, "vm").map.rendezvous;
  switch (meeting.secret) {
    case Rendezvous::Secret::kNone: return "none";
    case Rendezvous::Secret::kInherited: return "descriptor " + std::to_string(meeting.key_fd);
    case Rendezvous::Secret::kToken: return "token";
    case Rendezvous::Secret::kKeyFile: return "file " + meeting.key_name;
  }
  return "";
}

TEST(RankSecretTest, ComesFromOurOwnLauncher) {
  EXPECT_EQ(secret_of(with(kByVariables, {{"LOCKSTEP_KEY_FD", "7"}})), "descriptor 7");
  EXPECT_EQ(secret_of(with(kByVariables, {{"LOCKSTEP_KEY_FD", "7"}, {"LOCKSTEP_JOB_TOKEN", "x"}})),
            "descriptor 7");
  EXPECT_EQ(secret_of(with(kByVariables, {{"LOCKSTEP_KEY_NAME", "slurm-big-7.1-0"}})),
            "file slurm-big-7.1-0");
}

TEST(RankSecretTest, ComesFromTheUserWhereRanksAreSetByHand) {
  EXPECT_EQ(secret_of(kByVariables), "none") << "others may be Python's";
  EXPECT_EQ(secret_of(with(kByVariables, {{"LOCKSTEP_JOB_TOKEN", "x"}})), "token");
}

TEST(RankSecretTest, IsNoneAtTheStoreOfTorchrun) {
  EXPECT_EQ(
      secret_of(with(kByVariables, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}, {"LOCKSTEP_JOB_TOKEN", "x"}})),
      "none");
}

TEST(RankSecretTest, IsMadeByRankZeroUnderForeignLaunchers) {
  EXPECT_EQ(secret_of(kByStep), "file slurm-big-7.1-3");
  EXPECT_EQ(secret_of(with(kByStep, {{"LOCKSTEP_JOB_TOKEN", "x"}})), "token");
  EXPECT_EQ(secret_of(with(kByMpi, {{"MASTER_PORT", "29500"}})), "file mpi-prterun-vm-12@1-127.0.0.1-29500");
  EXPECT_EQ(secret_of(with(kByMpi, {{"LOCKSTEP_JOB_TOKEN", "x"}})), "token");
}

}  // namespace
}  // namespace lockstep::cluster
