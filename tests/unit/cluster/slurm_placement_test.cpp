#include "unit/cluster/captured_environments.h"
#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

class SlurmPlacementTest : public PlacementTest {};

TEST_P(SlurmPlacementTest, GivesTheExactMapOrError) { EXPECT_EQ(outcome(GetParam()), GetParam().expected); }

const base::Environment kTask = captured(kSlurmTaskPerRank);      // task 3 of 4 on two nodes
const base::Environment kNodeTask = captured(kSlurmTaskPerNode);  // task 1 of 2 on two nodes

const PlacementCase kSlurmJoins[] = {
    {"RealTaskPerRank",
     {},
     kTask,
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:28708 job 1.0"},
    {"RealTaskPerNode",
     {},
     kNodeTask,
     "slurm 1/2 local 0/1 node 1/2 [node01:1 node02:1] tcp://node01:23677 job 2.0"},
    {"RealUnequalNodes",
     {},
     captured(kSlurmUneven),
     "slurm 2/3 local 0/1 node 1/2 [node01:2 node02:1] tcp://node01:29610 job 3.0"},
    {"RealCyclicDistribution",
     {},
     captured(kSlurmCyclic),
     "slurm 1/4 local 0/1 node 1/2 [node01:3 node02:1] tcp://node01:20971 job 4.0"},
    {"RealPmi2StepIsSlurms",
     {},
     captured(kSlurmPmi2),
     "slurm 1/2 local 0/1 node 1/2 [node01:1 node02:1] tcp://node01:26904 job 5.0"},
    {"RealSecondStepReadsItsOwnVariables",
     {},
     captured(kSlurmSecondStep),
     "slurm 0/1 local 0/1 node 0/1 [node01:1] none job 7.1"},
    {"OneNodeMeetsOnLoopback",
     {},
     kSlurmOneNode,
     "slurm 1/2 local 1/2 node 0/1 [node01:2] tcp://127.0.0.1:27807 job 7.1"},
    {"StepsOfAJobGetDifferentPorts",
     {},
     with(kSlurmOneNode, {{"SLURM_STEP_ID", "0"}}),
     "slurm 1/2 local 1/2 node 0/1 [node01:2] tcp://127.0.0.1:27806 job 7.0"},
    {"MasterVariablesWin",
     {},
     with(kTask, {{"MASTER_ADDR", "10.1.2.3"}, {"MASTER_PORT", "12340"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://10.1.2.3:12340 job 1.0"},
    {"MasterAddressAloneKeepsTheDerivedPort",
     {},
     with(kTask, {{"MASTER_ADDR", "10.1.2.3"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://10.1.2.3:28708 job 1.0"},
    {"MasterPortAloneKeepsTheFirstNode",
     {},
     with(kTask, {{"MASTER_PORT", "12340"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:12340 job 1.0"},
    {"InitMethodWinsOverMasterVariables",
     {.init_method = "file:///shared/store"},
     with(kTask, {{"MASTER_ADDR", "10.1.2.3"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] file:///shared/store job 1.0"},
    // Princeton's script exports WORLD_SIZE, MASTER_ADDR and MASTER_PORT, and the rank is SLURM_PROCID.
    {"ScriptThatExportsWorldSize",
     {},
     with(kTask, {{"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node01"}, {"MASTER_PORT", "12340"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:12340 job 1.0"},
    {"ScriptThatRepeatsTheRank",
     {},
     with(kTask, {{"RANK", "3"},
                  {"WORLD_SIZE", "4"},
                  {"LOCAL_RANK", "1"},
                  {"MASTER_ADDR", "node01"},
                  {"MASTER_PORT", "12340"}}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:12340 job 1.0"},
    {"RanksSetByHandInsideAStepWin",
     {},
     with(kTask,
          {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "12340"}}),
     "torchrun 0/2 local 0/2 node 0/1 [vm:2] tcp://127.0.0.1:12340"},
    {"OldSlurmHasOnlyJobVariables",
     {},
     without(with(kTask, {{"SLURM_RESTART_COUNT", "2"}}),
             {"SLURM_STEP_ID", "SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
              "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}),
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:28708 job 1.0 restart 2"},
    {"NprocsMayRepeatTheTasks",
     {.nprocs = 4},
     kTask,
     "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:28708 job 1.0"},
};

INSTANTIATE_TEST_SUITE_P(Joins, SlurmPlacementTest, testing::ValuesIn(kSlurmJoins), case_name);

constexpr char kNotSrun[] =
    " | this process was not started by srun and uses one machine of the allocation, start it with srun to "
    "use all: ";

const PlacementCase kSpawns[] = {
    {"OneTaskPerNodeSpawns",
     {.nprocs = 8},
     kNodeTask,
     "slurm spawns 4..7 of 8 node 1/2 [node01:4 node02:4] tcp://node01:23677 job 2.0"},
    {"OneTaskPerNodeWithMasterPort",
     {.nprocs = 4},
     with(kNodeTask, {{"MASTER_PORT", "12340"}, {"WORLD_SIZE", "4"}}),
     "slurm spawns 2..3 of 4 node 1/2 [node01:2 node02:2] tcp://node01:12340 job 2.0"},
    {"OneTaskSpawnsAndPicksAFreePort",
     {.nprocs = 2},
     captured(kSlurmSecondStep),
     "slurm spawns 0..1 of 2 node 0/1 [node01:2] none job 7.1"},
    {"RealBatchShellIsNoRank",
     {},
     captured(kSlurmBatchShell),
     std::string("single 0/1 local 0/1 node 0/1 [vm:1] none") + kNotSrun +
         "SLURM_JOB_ID='7', SLURM_NTASKS='4', SLURM_JOB_NUM_NODES='2'"},
    {"RealBatchShellSpawnsHere",
     {.nprocs = 2},
     captured(kSlurmBatchShell),
     std::string("single spawns 0..1 of 2 node 0/1 [vm:2] none") + kNotSrun +
         "SLURM_JOB_ID='7', SLURM_NTASKS='4', SLURM_JOB_NUM_NODES='2'"},
    {"RealSallocShellIsNoRank",
     {},
     captured(kSlurmSallocShell),
     std::string("single 0/1 local 0/1 node 0/1 [vm:1] none") + kNotSrun +
         "SLURM_JOB_ID='6', SLURM_NTASKS='4', SLURM_JOB_NUM_NODES='2'"},
    {"RealInteractiveStepIsNoRank",
     {.nprocs = 2},
     captured(kSlurmInteractiveShell),
     std::string("single spawns 0..1 of 2 node 0/1 [vm:2] none") + kNotSrun +
         "SLURM_JOB_ID='10', SLURM_NTASKS='2', SLURM_JOB_NUM_NODES='2'"},
    {"BatchShellOfOneTaskIsQuiet",
     {},
     {{"SLURM_JOB_ID", "8"},
      {"SLURM_NTASKS", "1"},
      {"SLURM_PROCID", "0"},
      {"SLURM_JOB_NUM_NODES", "1"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "0"}},
     "single 0/1 local 0/1 node 0/1 [vm:1] none"},
};

INSTANTIATE_TEST_SUITE_P(Spawns, SlurmPlacementTest, testing::ValuesIn(kSpawns), case_name);

constexpr char kTaskValues[] =
    "SLURM_PROCID='3', SLURM_LOCALID='1', SLURM_NODEID='1', SLURM_STEP_NUM_TASKS='4', "
    "SLURM_STEP_NUM_NODES='2', "
    "SLURM_STEP_NODELIST='node[01-02]', SLURM_STEP_TASKS_PER_NODE='2(x2)'";

const PlacementCase kSlurmRefusals[] = {
    {"NoProcid",
     {},
     without(kSlurmOneNode, {"SLURM_PROCID"}),
     "[cluster] SLURM_PROCID is missing: SLURM_PROCID unset, SLURM_LOCALID='1', SLURM_NODEID='0', "
     "SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"NoStepIdButAStepsVariables",
     {},
     without(kSlurmOneNode, {"SLURM_STEP_ID"}),
     "[cluster] SLURM_STEP_ID is missing: SLURM_STEP_ID unset, SLURM_PROCID='1', SLURM_STEP_NUM_TASKS='2'"},
    {"NoStepIdButARank",
     {},
     {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}},
     "[cluster] SLURM_STEP_ID is missing: SLURM_STEP_ID unset, SLURM_PROCID='3', SLURM_STEP_NUM_TASKS unset"},
    {"StepIdIsText",
     {},
     with(kSlurmOneNode, {{"SLURM_STEP_ID", "batch"}}),
     "[cluster] SLURM_STEP_ID must be a whole number: SLURM_STEP_ID='batch'"},
    {"NoJobId",
     {},
     without(kSlurmOneNode, {"SLURM_JOB_ID"}),
     "[cluster] SLURM_JOB_ID is missing: SLURM_JOB_ID unset, SLURM_STEP_ID='1'"},
    {"StepScopeIsNotMixedWithJobScope",
     {},
     without(kTask, {"SLURM_STEP_NUM_TASKS"}),
     "[cluster] SLURM_STEP_NUM_TASKS is missing: SLURM_PROCID='3', SLURM_LOCALID='1', SLURM_NODEID='1', "
     "SLURM_STEP_NUM_TASKS unset, SLURM_STEP_NUM_NODES='2', SLURM_STEP_NODELIST='node[01-02]', "
     "SLURM_STEP_TASKS_PER_NODE='2(x2)'"},
    {"RankNotBelowTasks",
     {},
     with(kSlurmOneNode, {{"SLURM_PROCID", "2"}}),
     "[cluster] the rank must be below the world size: SLURM_PROCID='2', SLURM_LOCALID='1', "
     "SLURM_NODEID='0', "
     "SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"TruncatedNodeList",
     {},
     with(kSlurmOneNode, {{"SLURM_STEP_NUM_NODES", "3"}}),
     "[cluster] the number of hosts in SLURM_STEP_NODELIST is 1, not 3: SLURM_PROCID='1', SLURM_LOCALID='1', "
     "SLURM_NODEID='0', "
     "SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='3', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"NodeListCutInABracket",
     {},
     with(kTask, {{"SLURM_STEP_NODELIST", "node[01-"}}),
     "[cluster] SLURM_STEP_NODELIST is not a node list: it ends where a number is expected at column 9: "
     "SLURM_STEP_NODELIST='node[01-'"},
    {"EmptyNodeList",
     {},
     with(kTask, {{"SLURM_STEP_NODELIST", ""}}),
     "[cluster] SLURM_STEP_NODELIST is set but empty: SLURM_STEP_NODELIST=''"},
    {"CountsOfOtherNodes",
     {},
     with(kSlurmOneNode, {{"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}}),
     "[cluster] SLURM_STEP_NODELIST and SLURM_STEP_TASKS_PER_NODE are of different lengths, 1 and 2: "
     "SLURM_PROCID='1', SLURM_LOCALID='1', SLURM_NODEID='0', SLURM_STEP_NUM_TASKS='2', "
     "SLURM_STEP_NUM_NODES='1', "
     "SLURM_STEP_NODELIST='node01', SLURM_STEP_TASKS_PER_NODE='1(x2)'"},
    {"CountsDoNotAddUp",
     {},
     with(kSlurmOneNode, {{"SLURM_STEP_TASKS_PER_NODE", "3"}}),
     "[cluster] SLURM_STEP_TASKS_PER_NODE adds up to 3 tasks, not 2: SLURM_PROCID='1', SLURM_LOCALID='1', "
     "SLURM_NODEID='0', SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='3'"},
    {"BrokenCounts",
     {},
     with(kTask, {{"SLURM_STEP_TASKS_PER_NODE", "2(x2"}}),
     "[cluster] SLURM_STEP_TASKS_PER_NODE is not a list of counts: it ends where ')' is expected at column "
     "5: "
     "SLURM_STEP_TASKS_PER_NODE='2(x2'"},
    {"NodeIdNotBelowNodes",
     {},
     with(kSlurmOneNode, {{"SLURM_NODEID", "1"}}),
     "[cluster] the node's rank must be below the number of nodes: SLURM_PROCID='1', SLURM_LOCALID='1', "
     "SLURM_NODEID='1', SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"LocalIdNotBelowTheNodesTasks",
     {},
     with(kSlurmOneNode, {{"SLURM_LOCALID", "2"}}),
     "[cluster] the local rank must be below the local world size: SLURM_PROCID='1', SLURM_LOCALID='2', "
     "SLURM_NODEID='0', SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"RankAndLocalIdContradict",
     {},
     with(kSlurmOneNode, {{"SLURM_LOCALID", "0"}}),
     "[cluster] the rank and the local rank contradict each other: SLURM_PROCID='1', SLURM_LOCALID='0', "
     "SLURM_NODEID='0', SLURM_STEP_NUM_TASKS='2', SLURM_STEP_NUM_NODES='1', SLURM_STEP_NODELIST='node01', "
     "SLURM_STEP_TASKS_PER_NODE='2'"},
    {"GtidsContradict",
     {},
     with(kTask, {{"SLURM_GTIDS", "0,1"}}),
     std::string("[cluster] SLURM_GTIDS contradicts the task's place: ") + kTaskValues +
         ", SLURM_GTIDS='0,1'"},
    {"AnotherNodesName",
     {},
     with(kTask, {{"SLURMD_NODENAME", "node07"}}),
     std::string("[cluster] node 1 of SLURM_STEP_NODELIST is node02, not node07: ") + kTaskValues +
         ", SLURM_GTIDS='2,3', SLURMD_NODENAME='node07'"},
    {"RankZeroOnAnotherNode",
     {},
     {{"SLURM_JOB_ID", "7"},
      {"SLURM_STEP_ID", "0"},
      {"SLURM_PROCID", "0"},
      {"SLURM_LOCALID", "0"},
      {"SLURM_NODEID", "1"},
      {"SLURM_STEP_NUM_TASKS", "2"},
      {"SLURM_STEP_NODELIST", "a,b"},
      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
      {"SLURM_DISTRIBUTION", "arbitrary"}},
     "[cluster] rank 0 is not the first task of the first node, set MASTER_ADDR to its host: "
     "SLURM_PROCID='0', "
     "SLURM_NODEID='1', SLURM_LOCALID='0', SLURM_DISTRIBUTION='arbitrary', MASTER_ADDR unset"},
    {"WorldSizeOfAnotherJob",
     {},
     with(kTask, {{"WORLD_SIZE", "6"}}),
     "[cluster] WORLD_SIZE contradicts slurm, which says 4: WORLD_SIZE='6', SLURM_PROCID='3', "
     "SLURM_LOCALID='1', "
     "SLURM_STEP_NUM_TASKS='4', SLURM_STEP_TASKS_PER_NODE='2(x2)'"},
    {"LocalRankNone",
     {},
     with(kTask, {{"LOCAL_RANK", "None"}}),
     "[cluster] LOCAL_RANK must be a whole number from 0 to 1048576: LOCAL_RANK='None'"},
    {"EmptyMasterAddr",
     {},
     with(kTask, {{"MASTER_ADDR", ""}}),
     "[cluster] MASTER_ADDR is set but empty: MASTER_ADDR=''"},
    {"NprocsBelowTasks",
     {.nprocs = 2},
     kTask,
     "[cluster] nprocs=2 contradicts slurm, which started 4 ranks: SLURM_PROCID='3', SLURM_LOCALID='1', "
     "SLURM_STEP_NUM_TASKS='4', SLURM_STEP_TASKS_PER_NODE='2(x2)'"},
    {"NprocsAboveSeveralTasksPerNode",
     {.nprocs = 8},
     kTask,
     "[cluster] nprocs=8 contradicts slurm, which started 4 ranks: SLURM_PROCID='3', SLURM_LOCALID='1', "
     "SLURM_STEP_NUM_TASKS='4', SLURM_STEP_TASKS_PER_NODE='2(x2)'"},
    {"NprocsNotDivisibleByNodes",
     {.nprocs = 3},
     kNodeTask,
     "[cluster] nprocs=3 ranks cannot be shared equally by 2 nodes: SLURM_PROCID='1', "
     "SLURM_STEP_NUM_TASKS='2', "
     "SLURM_STEP_TASKS_PER_NODE='1(x2)'"},
    {"WorldSizeContradictsNprocs",
     {.nprocs = 4},
     with(kNodeTask, {{"WORLD_SIZE", "8"}}),
     "[cluster] WORLD_SIZE contradicts nprocs=4: WORLD_SIZE='8'"},
};

INSTANTIATE_TEST_SUITE_P(Refuses, SlurmPlacementTest, testing::ValuesIn(kSlurmRefusals), case_name);

}  // namespace
}  // namespace lockstep::cluster
