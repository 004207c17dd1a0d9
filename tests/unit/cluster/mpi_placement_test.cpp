#include "unit/cluster/captured_environments.h"
#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

class MpiPlacementTest : public PlacementTest {};

TEST_P(MpiPlacementTest, GivesTheExactMapOrError) { EXPECT_EQ(outcome(GetParam()), GetParam().expected); }

const base::Environment kOmpi = captured(kOpenMpi);      // rank 1 of 2 on one machine
const base::Environment kHydra = captured(kMpichHydra);  // the same

const base::Environment kOmpiTwoNodes =
    with(kOmpi,
         {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});

constexpr char kHint[] = "give it to all ranks (OpenMPI: -x NAME=value, MPICH: -genv NAME value): ";

const PlacementCase kMpiJoins[] = {
    {"RealOpenMpi", {}, kOmpi, "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:28922 job 661848065"},
    {"RealOpenMpiWithNprocs",
     {.nprocs = 2},
     kOmpi,
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:28922 job 661848065"},
    {"RealHydraWithPort",
     {},
     with(kHydra, {{"MASTER_PORT", "29500"}}),
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"OpenMpiWithMasterVariables",
     {},
     with(kOmpi, {{"MASTER_ADDR", "10.0.0.1"}, {"MASTER_PORT", "29500"}}),
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://10.0.0.1:29500 job 661848065"},
    {"TwoNodesDeriveThePortOnly",
     {},
     with(kOmpiTwoNodes, {{"MASTER_ADDR", "head"}}),
     "mpi 2/4 local 0/2 node -1/0 [] tcp://head:28922 job 661848065"},
    {"TwoNodesWithInitMethod",
     {.init_method = "tcp://[fd00::1]:4000"},
     kOmpiTwoNodes,
     "mpi 2/4 local 0/2 node -1/0 [] tcp://[fd00::1]:4000 job 661848065"},
    {"WorldOfOne",
     {},
     with(kHydra, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}}),
     "mpi 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"PmiWithoutLocalRanksOnLoopback",
     {},
     {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}},
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"PmixWithSizesByHand",
     {},
     {{"PMIX_RANK", "1"},
      {"PMIX_NAMESPACE", "661848065"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"}},
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:28922 job 661848065"},
    {"RepeatedVariablesMayAgree",
     {},
     with(kOmpi, {{"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}),
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:28922 job 661848065"},
    {"TorchrunStyleVariablesWin",
     {},
     with(kOmpi,
          {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}}),
     "torchrun 0/3 local 0/3 node 0/1 [vm:3] tcp://127.0.0.1:29500"},
    {"MpirunInABatchShell",
     {},
     [] {
       base::Environment environment = captured(kSlurmBatchShell);
       for (const auto& [name, value] : kOmpi.values()) environment.set(name, value);
       return environment;
     }(),
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:28922 job 661848065"},
    {"RealMpirunInsideASlurmJob",
     {},
     with(captured(kOpenMpiInSlurm), {{"MASTER_ADDR", "node01"}}),
     "mpi 3/4 local 1/2 node -1/0 [] tcp://node01:31158 job 1613496321"},
    // Rank and size equal the daemon's, so that by them alone rank 0 would join the step and rank 1 would
    // not.
    {"MpirunThatLooksLikeTheStep",
     {},
     with(captured(kOpenMpiInSlurm), {{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
     "mpi 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:31158 job 1613496321"},
    {"ScriptThatRepeatsMpi",
     {},
     with(kOmpiTwoNodes,
          {{"RANK", "2"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "head"}, {"MASTER_PORT", "29500"}}),
     "mpi 2/4 local 0/2 node -1/0 [] tcp://head:29500 job 661848065"},
};

INSTANTIATE_TEST_SUITE_P(Joins, MpiPlacementTest, testing::ValuesIn(kMpiJoins), case_name);

const PlacementCase kMpiRefusals[] = {
    {"RealMpirunInsideASlurmJobNeedsAnAddress",
     {},
     captured(kOpenMpiInSlurm),
     std::string("[cluster] the rendezvous is incomplete, MASTER_ADDR is missing; ") + kHint +
         "OMPI_COMM_WORLD_RANK='3', OMPI_COMM_WORLD_SIZE='4', OMPI_COMM_WORLD_LOCAL_RANK='1', "
         "OMPI_COMM_WORLD_LOCAL_SIZE='2', MASTER_ADDR unset, MASTER_PORT unset"},
    {"RealHydraTellsNoPort",
     {},
     kHydra,
     std::string("[cluster] the rendezvous is incomplete, MASTER_PORT is missing; ") + kHint +
         "PMI_RANK='1', PMI_SIZE='2', MPI_LOCALRANKID='1', MPI_LOCALNRANKS='2', MASTER_ADDR unset, "
         "MASTER_PORT unset"},
    {"TwoNodesNeedAnAddress",
     {},
     kOmpiTwoNodes,
     std::string("[cluster] the rendezvous is incomplete, MASTER_ADDR is missing; ") + kHint +
         "OMPI_COMM_WORLD_RANK='2', OMPI_COMM_WORLD_SIZE='4', OMPI_COMM_WORLD_LOCAL_RANK='0', "
         "OMPI_COMM_WORLD_LOCAL_SIZE='2', MASTER_ADDR unset, MASTER_PORT unset"},
    {"RankWithoutSize",
     {},
     without(kOmpi, {"OMPI_COMM_WORLD_SIZE"}),
     "[cluster] OMPI_COMM_WORLD_SIZE is missing: OMPI_COMM_WORLD_RANK='1', OMPI_COMM_WORLD_SIZE unset, "
     "OMPI_COMM_WORLD_LOCAL_RANK='1', OMPI_COMM_WORLD_LOCAL_SIZE='2'"},
    {"SizeWithoutRank",
     {},
     {{"PMI_SIZE", "2"}},
     "[cluster] PMI_RANK is missing: PMI_RANK unset, PMI_SIZE='2', MPI_LOCALRANKID unset, MPI_LOCALNRANKS "
     "unset"},
    {"PmixAloneTellsNoSize",
     {},
     {{"PMIX_RANK", "0"}},
     "[cluster] WORLD_SIZE is missing: PMIX_RANK='0', WORLD_SIZE unset, LOCAL_RANK unset, LOCAL_WORLD_SIZE "
     "unset"},
    {"RankNotBelowSize",
     {},
     with(kHydra, {{"PMI_RANK", "2"}}),
     "[cluster] the rank must be below the world size: PMI_RANK='2', PMI_SIZE='2', MPI_LOCALRANKID='1', "
     "MPI_LOCALNRANKS='2'"},
    {"LocalRankWithoutLocalSize",
     {},
     with(without(kHydra, {"MPI_LOCALNRANKS"}), {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}}),
     "[cluster] MPI_LOCALNRANKS is missing: PMI_RANK='1', PMI_SIZE='2', MPI_LOCALRANKID='1', MPI_LOCALNRANKS "
     "unset"},
    {"TextRank",
     {},
     with(kOmpi, {{"OMPI_COMM_WORLD_RANK", "x"}}),
     "[cluster] OMPI_COMM_WORLD_RANK must be a whole number from 0 to 1048575: OMPI_COMM_WORLD_RANK='x'"},
    {"NprocsContradictsMpirun",
     {.nprocs = 4},
     kOmpi,
     "[cluster] nprocs=4 contradicts mpi, which started 2 ranks: OMPI_COMM_WORLD_RANK='1', "
     "OMPI_COMM_WORLD_SIZE='2'"},
    {"WorldSizeContradictsMpirun",
     {},
     with(kOmpi, {{"WORLD_SIZE", "3"}}),
     "[cluster] WORLD_SIZE contradicts mpi, which says 2: WORLD_SIZE='3', OMPI_COMM_WORLD_RANK='1', "
     "OMPI_COMM_WORLD_SIZE='2', OMPI_COMM_WORLD_LOCAL_RANK='1', OMPI_COMM_WORLD_LOCAL_SIZE='2'"},
};

INSTANTIATE_TEST_SUITE_P(Refuses, MpiPlacementTest, testing::ValuesIn(kMpiRefusals), case_name);

}  // namespace
}  // namespace lockstep::cluster
