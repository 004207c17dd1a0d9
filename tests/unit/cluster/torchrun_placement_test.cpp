#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

class TorchrunPlacementTest : public PlacementTest {};

TEST_P(TorchrunPlacementTest, GivesTheExactMapOrError) {
  EXPECT_EQ(outcome(GetParam()), GetParam().expected);
}

// What torchrun 2.11 gave to local rank 1 of two.
const base::Environment kTorchrun{{"GROUP_RANK", "0"},
                                  {"GROUP_WORLD_SIZE", "1"},
                                  {"LOCAL_RANK", "1"},
                                  {"LOCAL_WORLD_SIZE", "2"},
                                  {"MASTER_ADDR", "127.0.0.1"},
                                  {"MASTER_PORT", "29500"},
                                  {"OMP_NUM_THREADS", "1"},
                                  {"RANK", "1"},
                                  {"ROLE_NAME", "default"},
                                  {"ROLE_RANK", "1"},
                                  {"ROLE_WORLD_SIZE", "2"},
                                  {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                  {"TORCHELASTIC_RESTART_COUNT", "0"},
                                  {"TORCHELASTIC_RUN_ID", "none"},
                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                  {"WORLD_SIZE", "2"}};

const base::Environment kHandSet{
    {"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}};

constexpr char kAssumed[] =
    " | nothing tells how many ranks share this machine, so one is assumed: set LOCAL_RANK and "
    "LOCAL_WORLD_SIZE";

const PlacementCase kJoins[] = {
    {"RealTorchrun", {}, kTorchrun, "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent"},
    {"OurOwnLauncher",
     {},
     with(kTorchrun, {{"LOCKSTEP_LAUNCHER", "lockstep"}}),
     "lockstep 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent"},
    {"AgentStoreOnlyIfTrue",
     {},
     with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}}),
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"SecondNode",
     {},
     with(kTorchrun, {{"RANK", "3"},
                      {"WORLD_SIZE", "4"},
                      {"GROUP_RANK", "1"},
                      {"GROUP_WORLD_SIZE", "2"},
                      {"MASTER_ADDR", "head"}}),
     "torchrun 3/4 local 1/2 node 1/2 [] tcp://head:29500 agent"},
    {"RunIdAndRestarts",
     {},
     with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "ab-1"}, {"TORCHELASTIC_RESTART_COUNT", "3"}}),
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent job ab-1 restart 3"},
    {"WorldOfOneMeetsNobody",
     {},
     with(kTorchrun, {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}}),
     "torchrun 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"OwnLauncherHandsTheStoreToRankZero",
     {},
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"MASTER_ADDR", "127.0.0.1"},
      {"MASTER_PORT", "40000"},
      {"LOCKSTEP_STORE_FD", "5"}},
     "torchrun 0/2 local 0/2 node 0/1 [vm:2] tcp://127.0.0.1:40000 fd 5"},
    {"OtherRanksHaveNoStoreSocket",
     {},
     with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}, {"LOCKSTEP_STORE_FD", "5"}}),
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"HandSetOnLoopbackIsAllHere",
     {},
     with(kHandSet, {{"MASTER_ADDR", "localhost"}}),
     "torchrun 1/4 local 1/4 node 0/1 [vm:4] tcp://localhost:29500"},
    {"HandSetOnIpv6Loopback",
     {},
     with(kHandSet, {{"MASTER_ADDR", "::1"}}),
     "torchrun 1/4 local 1/4 node 0/1 [vm:4] tcp://[::1]:29500"},
    {"HandSetElsewhereAssumesOneRankHere",
     {},
     kHandSet,
     std::string("torchrun 1/4 local 0/1 node -1/0 [] tcp://10.0.0.1:29500") + kAssumed},
    {"HandSetWithLocalRanks",
     {},
     with(kHandSet, {{"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}}),
     "torchrun 1/4 local 1/2 node -1/0 [] tcp://10.0.0.1:29500"},
    {"HandSetLocalRankOnLoopback",
     {},
     with(kHandSet, {{"MASTER_ADDR", "127.0.0.1"}, {"LOCAL_RANK", "1"}}),
     "torchrun 1/4 local 1/4 node 0/1 [vm:4] tcp://127.0.0.1:29500"},
    {"HandSetWorldOfOne",
     {},
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
     "torchrun 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"NprocsMayRepeatTheWorld",
     {.nprocs = 2},
     kTorchrun,
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent"},
    {"UnequalNodes",
     {},
     with(kHandSet, {{"RANK", "4"},
                     {"WORLD_SIZE", "5"},
                     {"LOCAL_RANK", "0"},
                     {"LOCAL_WORLD_SIZE", "1"},
                     {"GROUP_RANK", "2"},
                     {"GROUP_WORLD_SIZE", "3"}}),
     "torchrun 4/5 local 0/1 node 2/3 [] tcp://10.0.0.1:29500"},
    {"TorchrunInsideASlurmStepWins",
     {},
     with(kTorchrun, {{"SLURM_JOB_ID", "7"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "1"},
                      {"SLURM_STEP_NUM_NODES", "1"},
                      {"SLURM_STEP_NODELIST", "node01"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1"}}),
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent"},
    {"TorchrunWinsOverBrokenSlurmVariables",
     {},
     with(kTorchrun, {{"SLURM_STEP_ID", "x"}}),
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500 agent"},
};

INSTANTIATE_TEST_SUITE_P(Joins, TorchrunPlacementTest, testing::ValuesIn(kJoins), case_name);

const PlacementCase kRefusals[] = {
    {"RankWithoutWorldSize",
     {},
     {{"RANK", "0"}},
     "[cluster] WORLD_SIZE is missing: RANK='0', WORLD_SIZE unset, LOCAL_RANK unset, LOCAL_WORLD_SIZE unset, "
     "GROUP_RANK unset, GROUP_WORLD_SIZE unset"},
    {"WorldSizeWithoutRank",
     {},
     {{"WORLD_SIZE", "2"}},
     "[cluster] RANK is missing beside other variables of a launcher, set it or unset them: RANK unset, "
     "WORLD_SIZE='2', LOCAL_RANK unset, LOCAL_WORLD_SIZE unset, TORCHELASTIC_RUN_ID unset"},
    {"LocalRankAlone",
     {},
     {{"LOCAL_RANK", "0"}},
     "[cluster] RANK is missing beside other variables of a launcher, set it or unset them: RANK unset, "
     "WORLD_SIZE unset, LOCAL_RANK='0', LOCAL_WORLD_SIZE unset, TORCHELASTIC_RUN_ID unset"},
    {"RunIdAlone",
     {},
     {{"TORCHELASTIC_RUN_ID", "none"}},
     "[cluster] RANK is missing beside other variables of a launcher, set it or unset them: RANK unset, "
     "WORLD_SIZE unset, LOCAL_RANK unset, LOCAL_WORLD_SIZE unset, TORCHELASTIC_RUN_ID='none'"},
    {"NoPort",
     {},
     without(kHandSet, {"MASTER_PORT"}),
     "[cluster] the ranks do not know where to meet, MASTER_PORT is missing; set both to the address and a "
     "free port "
     "of rank 0's machine: RANK='1', WORLD_SIZE='4', MASTER_ADDR='10.0.0.1', MASTER_PORT unset"},
    {"NoAddress",
     {},
     without(kHandSet, {"MASTER_ADDR"}),
     "[cluster] the ranks do not know where to meet, MASTER_ADDR is missing; set both to the address and a "
     "free port "
     "of rank 0's machine: RANK='1', WORLD_SIZE='4', MASTER_ADDR unset, MASTER_PORT='29500'"},
    {"NeitherAddressNorPort",
     {},
     without(kHandSet, {"MASTER_ADDR", "MASTER_PORT"}),
     "[cluster] the ranks do not know where to meet, MASTER_ADDR and MASTER_PORT are missing; set both to "
     "the address "
     "and a free port of rank 0's machine: RANK='1', WORLD_SIZE='4', MASTER_ADDR unset, MASTER_PORT unset"},
    {"EmptyRank", {}, with(kTorchrun, {{"RANK", ""}}), "[cluster] RANK is set but empty: RANK=''"},
    {"EmptyAddress",
     {},
     with(kTorchrun, {{"MASTER_ADDR", ""}}),
     "[cluster] MASTER_ADDR is set but empty: MASTER_ADDR=''"},
    {"TextRank",
     {},
     with(kTorchrun, {{"RANK", "one"}}),
     "[cluster] RANK must be a whole number from 0 to 1048575: RANK='one'"},
    {"NegativeRank",
     {},
     with(kTorchrun, {{"RANK", "-1"}}),
     "[cluster] RANK must be a whole number from 0 to 1048575: RANK='-1'"},
    {"SpaceInRank",
     {},
     with(kTorchrun, {{"RANK", " 1"}}),
     "[cluster] RANK must be a whole number from 0 to 1048575: RANK=' 1'"},
    {"FractionalWorld",
     {},
     with(kTorchrun, {{"WORLD_SIZE", "2.0"}}),
     "[cluster] WORLD_SIZE must be a whole number from 1 to 1048576: WORLD_SIZE='2.0'"},
    {"HugeWorld",
     {},
     with(kTorchrun, {{"WORLD_SIZE", "99999999999999999999"}}),
     "[cluster] WORLD_SIZE must be a whole number from 1 to 1048576: WORLD_SIZE='99999999999999999999'"},
    {"WorldOfNone",
     {},
     with(kTorchrun, {{"WORLD_SIZE", "0"}}),
     "[cluster] WORLD_SIZE must be a whole number from 1 to 1048576: WORLD_SIZE='0'"},
    {"RankNotBelowWorld",
     {},
     with(kTorchrun, {{"RANK", "2"}}),
     "[cluster] the rank must be below the world size: RANK='2', WORLD_SIZE='2', LOCAL_RANK='1', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"LocalRankNone",
     {},
     with(kTorchrun, {{"LOCAL_RANK", "None"}}),
     "[cluster] LOCAL_RANK must be a whole number from 0 to 1048575: LOCAL_RANK='None'"},
    {"LocalRankNotBelowLocalWorld",
     {},
     with(kTorchrun, {{"LOCAL_RANK", "2"}}),
     "[cluster] the local rank must be below the local world size: RANK='1', WORLD_SIZE='2', LOCAL_RANK='2', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"LocalWorldAboveWorld",
     {},
     with(kTorchrun, {{"LOCAL_WORLD_SIZE", "3"}}),
     "[cluster] the local world size must not exceed the world size: RANK='1', WORLD_SIZE='2', "
     "LOCAL_RANK='1', "
     "LOCAL_WORLD_SIZE='3', GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"LocalRankAboveRank",
     {},
     with(kTorchrun, {{"RANK", "0"}}),
     "[cluster] the rank and the local rank contradict each other: RANK='0', WORLD_SIZE='2', LOCAL_RANK='1', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"NoRoomForTheNodesOtherRanks",
     {},
     with(kTorchrun, {{"LOCAL_RANK", "0"}}),
     "[cluster] the rank and the local rank contradict each other: RANK='1', WORLD_SIZE='2', LOCAL_RANK='0', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"LocalWorldWithoutLocalRank",
     {},
     without(kTorchrun, {"LOCAL_RANK"}),
     "[cluster] LOCAL_RANK is missing: RANK='1', WORLD_SIZE='2', LOCAL_RANK unset, LOCAL_WORLD_SIZE='2', "
     "GROUP_RANK='0', GROUP_WORLD_SIZE='1'"},
    {"LocalRankWithoutLocalWorld",
     {},
     with(kHandSet, {{"LOCAL_RANK", "1"}}),
     "[cluster] LOCAL_WORLD_SIZE is missing: RANK='1', WORLD_SIZE='4', LOCAL_RANK='1', LOCAL_WORLD_SIZE "
     "unset, "
     "GROUP_RANK unset, GROUP_WORLD_SIZE unset"},
    {"GroupRankAlone",
     {},
     without(kTorchrun, {"GROUP_WORLD_SIZE"}),
     "[cluster] GROUP_WORLD_SIZE is missing: RANK='1', WORLD_SIZE='2', LOCAL_RANK='1', LOCAL_WORLD_SIZE='2', "
     "GROUP_RANK='0', GROUP_WORLD_SIZE unset"},
    {"GroupRankNotBelowGroups",
     {},
     with(kTorchrun, {{"GROUP_RANK", "1"}}),
     "[cluster] the node's rank must be below the number of nodes: RANK='1', WORLD_SIZE='2', LOCAL_RANK='1', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='1', GROUP_WORLD_SIZE='1'"},
    {"TwoGroupsButAllRanksLocal",
     {},
     with(kTorchrun, {{"GROUP_WORLD_SIZE", "2"}}),
     "[cluster] the number of nodes contradicts the local world size: RANK='1', WORLD_SIZE='2', "
     "LOCAL_RANK='1', "
     "LOCAL_WORLD_SIZE='2', GROUP_RANK='0', GROUP_WORLD_SIZE='2'"},
    {"PortZero",
     {},
     with(kTorchrun, {{"MASTER_PORT", "0"}}),
     "[cluster] MASTER_PORT must be a whole number from 1 to 65535: MASTER_PORT='0'"},
    {"PortTooHigh",
     {},
     with(kTorchrun, {{"MASTER_PORT", "65536"}}),
     "[cluster] MASTER_PORT must be a whole number from 1 to 65535: MASTER_PORT='65536'"},
    {"BrokenPortInAWorldOfOne",
     {},
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_PORT", "http"}},
     "[cluster] MASTER_PORT must be a whole number from 1 to 65535: MASTER_PORT='http'"},
    {"BrokenRestartCount",
     {},
     with(kTorchrun, {{"TORCHELASTIC_RESTART_COUNT", "many"}}),
     "[cluster] TORCHELASTIC_RESTART_COUNT must be a whole number from 0 to 1073741824: "
     "TORCHELASTIC_RESTART_COUNT='many'"},
    {"BrokenStoreSocket",
     {},
     with(kTorchrun, {{"LOCKSTEP_STORE_FD", "-1"}}),
     "[cluster] LOCKSTEP_STORE_FD must be a whole number from 3 to 1073741824: LOCKSTEP_STORE_FD='-1'"},
    {"NprocsContradictsTorchrun",
     {.nprocs = 4},
     kTorchrun,
     "[cluster] nprocs=4 contradicts torchrun, which started 2 ranks: RANK='1', WORLD_SIZE='2'"},
};

INSTANTIATE_TEST_SUITE_P(Refuses, TorchrunPlacementTest, testing::ValuesIn(kRefusals), case_name);

}  // namespace
}  // namespace lockstep::cluster
