#include "unit/cluster/placement_case.h"

namespace lockstep::cluster {
namespace {

class ExplicitPlacementTest : public PlacementTest {};

TEST_P(ExplicitPlacementTest, GivesTheExactMapOrError) {
  EXPECT_EQ(outcome(GetParam()), GetParam().expected);
}

PlacementRequest url(const char* init_method) { return {.init_method = init_method}; }

const base::Environment kMaster{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};

const PlacementCase kArguments[] = {
    {"RankAndWorldWithTcp",
     {.rank = 1, .world_size = 2, .init_method = "tcp://127.0.0.1:4000"},
     {},
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:4000"},
    {"RankAndWorldWithMasterVariables",
     {.rank = 1, .world_size = 2},
     kMaster,
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"EnvUrlTakesMasterVariables",
     {.rank = 1, .world_size = 2, .init_method = "env://"},
     kMaster,
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"LocalRanks",
     {.rank = 3, .world_size = 4, .local_rank = 1, .local_world_size = 2, .init_method = "tcp://h:4000"},
     {},
     "explicit 3/4 local 1/2 node -1/0 [] tcp://h:4000"},
    {"ArgumentsWinOverVariables",
     {.rank = 1, .world_size = 2, .init_method = "tcp://localhost:4000"},
     {{"RANK", "7"}, {"WORLD_SIZE", "8"}},
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://localhost:4000"},
    {"FileMeetsElsewhere",
     {.rank = 0, .world_size = 2, .init_method = "file:///shared/store"},
     {},
     std::string("explicit 0/2 local 0/1 node -1/0 [] file:///shared/store") + kOneRankAssumed},
    {"QueryOfTcp",
     url("tcp://127.0.0.1:4000?rank=1&world_size=2"),
     {},
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:4000"},
    {"QueryOfIpv6",
     url("tcp://[::1]:4000?world_size=2&rank=0"),
     {},
     "explicit 0/2 local 0/2 node 0/1 [vm:2] tcp://[::1]:4000"},
    {"QueryOfFile",
     url("file:///a/b?rank=0&world_size=1"),
     {},
     "explicit 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"QueryOfEnv", url("env://?rank=1&world_size=2"), kMaster,
     "explicit 1/2 local 1/2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"UrlOverTorchrunsStore",
     url("tcp://head:4000"),
     {{"RANK", "1"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
     "torchrun 1/2 local 1/2 node 0/1 [vm:2] tcp://head:4000"},
};

INSTANTIATE_TEST_SUITE_P(Arguments, ExplicitPlacementTest, testing::ValuesIn(kArguments), case_name);

const PlacementCase kSingle[] = {
    {"NothingAtAll", {}, {}, "single 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"OneProcess", {.nprocs = 1}, {}, "single 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"EnvUrlIsTheDefault", url("env://"), {}, "single 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"MasterVariablesAloneMeanNothing", {}, kMaster, "single 0/1 local 0/1 node 0/1 [vm:1] none"},
    {"TwoProcesses", {.nprocs = 2}, {}, "single spawns 0..1 of 2 node 0/1 [vm:2] none"},
    {"TwoProcessesAtAGivenPlace",
     {.nprocs = 2},
     kMaster,
     "single spawns 0..1 of 2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"TwoProcessesAtAGivenPort",
     {.nprocs = 2},
     {{"MASTER_PORT", "29500"}},
     "single spawns 0..1 of 2 node 0/1 [vm:2] tcp://127.0.0.1:29500"},
    {"TwoProcessesAtAFile",
     {.nprocs = 2, .init_method = "file:///tmp/store"},
     {},
     "single spawns 0..1 of 2 node 0/1 [vm:2] file:///tmp/store"},
};

INSTANTIATE_TEST_SUITE_P(Single, ExplicitPlacementTest, testing::ValuesIn(kSingle), case_name);

const PlacementCase kExplicitRefusals[] = {
    {"RankAlone",
     {.rank = 1},
     {{"WORLD_SIZE", "2"}},
     "[cluster] rank and world_size must be given together: rank=1, world_size=unset"},
    {"WorldSizeAlone",
     {.world_size = 2},
     {},
     "[cluster] rank and world_size must be given together: rank=unset, world_size=2"},
    {"RankNotBelowWorld",
     {.rank = 2, .world_size = 2},
     kMaster,
     "[cluster] the rank must be below the world size: argument rank='2', argument world_size='2', "
     "LOCAL_RANK unset, "
     "LOCAL_WORLD_SIZE unset, GROUP_RANK unset, GROUP_WORLD_SIZE unset"},
    {"NegativeRank",
     {.rank = -1, .world_size = 2},
     kMaster,
     "[cluster] argument rank must be a whole number from 0 to 1048575: argument rank='-1'"},
    {"NowhereToMeet",
     {.rank = 0, .world_size = 2},
     {},
     "[cluster] the rendezvous is incomplete, MASTER_ADDR and MASTER_PORT are missing; set both to "
     "the address "
     "and a free port of rank 0's machine: argument rank='0', argument world_size='2', MASTER_ADDR unset, "
     "MASTER_PORT unset"},
    {"LocalRankAlone",
     {.local_rank = 0},
     {},
     "[cluster] RANK is missing while other variables of a launcher are set, set it or unset them: "
     "RANK unset, "
     "WORLD_SIZE unset, argument local_rank='0', LOCAL_WORLD_SIZE unset, TORCHELASTIC_RUN_ID unset"},
    {"RankTwice",
     {.rank = 0, .world_size = 2, .init_method = "tcp://h:1?rank=0&world_size=2"},
     {},
     "[cluster] rank and world_size are given both in init_method and outside of it: "
     "init_method='tcp://h:1?rank=0&world_size=2', rank=0, world_size=2"},
    {"UrlWithoutRank",
     url("tcp://h:4000"),
     {},
     "[cluster] init_method names a rendezvous but this process has no rank, give rank and "
     "world_size: "
     "init_method='tcp://h:4000'"},
    {"NoProcesses", {.nprocs = 0}, {}, "[cluster] nprocs must be from 1 to 1048576: nprocs=0"},
    {"NegativeProcesses", {.nprocs = -2}, {}, "[cluster] nprocs must be from 1 to 1048576: nprocs=-2"},
    {"NprocsContradictsArguments",
     {.nprocs = 3, .rank = 0, .world_size = 2},
     kMaster,
     "[cluster] nprocs=3 contradicts explicit, which started 2 ranks: argument rank='0', argument "
     "world_size='2'"},
    {"SpawnWithAddressButNoPort",
     {.nprocs = 2},
     {{"MASTER_ADDR", "vm"}},
     "[cluster] the rendezvous is incomplete, MASTER_PORT is missing; set it, or unset MASTER_ADDR "
     "for a free "
     "one: MASTER_ADDR='vm', MASTER_PORT unset"},
    {"NoScheme",
     url("head:4000"),
     {},
     "[cluster] init_method cannot be used, it must be env://, tcp://host:port or file:///path: "
     "init_method='head:4000'"},
    {"UnknownScheme",
     url("http://h:80"),
     {},
     "[cluster] init_method cannot be used, it must be env://, tcp://host:port or file:///path: "
     "init_method='http://h:80'"},
    {"TcpWithoutPort",
     url("tcp://h"),
     {},
     "[cluster] init_method cannot be used, its port is missing: init_method='tcp://h'"},
    {"TcpWithoutHost",
     url("tcp://:4000"),
     {},
     "[cluster] init_method cannot be used, its host is missing: init_method='tcp://:4000'"},
    {"TcpPortTooHigh",
     url("tcp://h:65536"),
     {},
     "[cluster] init_method cannot be used, its port must be a whole number from 1 to 65535: "
     "init_method='tcp://h:65536'"},
    {"TcpPath",
     url("tcp://h:4000/x"),
     {},
     "[cluster] init_method cannot be used, its port must be a whole number from 1 to 65535: "
     "init_method='tcp://h:4000/x'"},
    {"BareIpv6",
     url("tcp://fd00::1:4000"),
     {},
     "[cluster] init_method cannot be used, an IPv6 address must stand in brackets: "
     "init_method='tcp://fd00::1:4000'"},
    {"OpenBracket",
     url("tcp://[::1:4000"),
     {},
     "[cluster] init_method cannot be used, the '[' of its address is not closed: "
     "init_method='tcp://[::1:4000'"},
    {"BracketWithoutPort",
     url("tcp://[::1]"),
     {},
     "[cluster] init_method cannot be used, its port is missing: init_method='tcp://[::1]'"},
    {"RelativeFile",
     url("file://store"),
     {},
     "[cluster] init_method cannot be used, its path must be absolute, as in file:///path: "
     "init_method='file://store'"},
    {"EnvWithHost",
     url("env://h"),
     {},
     "[cluster] init_method cannot be used, nothing but a query may follow env://: init_method='env://h'"},
    {"UnknownQuery",
     url("tcp://h:1?size=2"),
     {},
     "[cluster] init_method cannot be used, its query may hold only rank and world_size: "
     "init_method='tcp://h:1?size=2'"},
    {"QueryRankIsText",
     url("tcp://h:1?rank=x&world_size=2"),
     {},
     "[cluster] init_method cannot be used, its rank must be a whole number from 0 to 1048575: "
     "init_method='tcp://h:1?rank=x&world_size=2'"},
};

INSTANTIATE_TEST_SUITE_P(Refuses, ExplicitPlacementTest, testing::ValuesIn(kExplicitRefusals), case_name);

}  // namespace
}  // namespace lockstep::cluster
