#include "launcher/agent/run_options.h"

#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cluster/node_resources.h"
#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

RunOptions parse(std::vector<std::string> arguments, const base::Environment& environment = {}) {
  arguments.push_back("/bin/true");
  return parse_run_options(arguments, environment, {.cpus = 6, .gpus = 0});
}

std::string refusal(const std::vector<std::string>& arguments, const base::Environment& environment = {}) {
  try {
    parse(arguments, environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RunOptionsTest, NothingGivenIsOneRankHere) {
  const RunOptions options = parse({});
  EXPECT_EQ(options.local_world_size, 1);
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kAlone);
  EXPECT_EQ(options.store_addr, "127.0.0.1");
  EXPECT_EQ(options.store_port, 0);
  EXPECT_EQ(options.shutdown_timeout, std::chrono::seconds(30));
  EXPECT_THAT(options.notify_signals, ElementsAre(SIGUSR1, SIGUSR2));
  EXPECT_EQ(options.command.program, "/bin/true");
}

TEST(RunOptionsTest, AJobWithoutNameAndPortGetsARandomName) {
  EXPECT_THAT(parse({}).run_id, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_NE(parse({}).run_id, parse({}).run_id);
  EXPECT_EQ(parse({"--rdzv-id", "job"}).run_id, "job");
  EXPECT_EQ(parse({"--rdzv-id", "none"}).run_id, "none");
  EXPECT_EQ(parse({"--master-port", "1234"}).run_id, "none");
  EXPECT_EQ(parse({"--rdzv-endpoint", "localhost:1234"}).run_id, "none");
  EXPECT_EQ(parse({"--nnodes", "2", "--master-addr", "head"}).run_id, "none") << "all nodes need the same";
}

TEST(RunOptionsTest, BothSpellingsAndTheShortOne) {
  EXPECT_EQ(parse({"--nproc_per_node=3"}).local_world_size, 3);
  EXPECT_EQ(parse({"--nproc-per-node", "3"}).local_world_size, 3);
  EXPECT_EQ(parse({"-n", "3"}).local_world_size, 3);
  EXPECT_EQ(parse({"-n", "cpu"}).local_world_size, 6);
  EXPECT_EQ(parse({"-n", "auto"}).local_world_size, 6);
  EXPECT_EQ(parse_run_options({"-n", "auto", "/bin/true"}, {}, {.cpus = 6, .gpus = 2}).local_world_size, 2);
}

TEST(RunOptionsTest, StaticNodes) {
  const RunOptions options = parse({"--nnodes", "3", "--node-rank", "2", "--master-addr", "head"});
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kStatic);
  EXPECT_EQ(options.join.host, "head");
  EXPECT_EQ(options.join.port, 29500);
  EXPECT_EQ(options.join.node_rank, 2);
  EXPECT_EQ(options.join.is_host, false);
}

TEST(RunOptionsTest, OpenNodes) {
  const RunOptions options =
      parse({"--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint", "[fe80::1]:99", "--rdzv-conf",
             "join_timeout=2.5,last_call_timeout=1,is_host=1,use_libuv=0"});
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kOpen);
  EXPECT_EQ(options.join.host, "fe80::1");
  EXPECT_EQ(options.join.port, 99);
  EXPECT_EQ(options.join.node_rank, std::nullopt);
  EXPECT_EQ(options.join.is_host, true);
  EXPECT_EQ(options.join.join_timeout, std::chrono::milliseconds(2500));
  EXPECT_EQ(options.max_nodes, 4);
}

TEST(RunOptionsTest, EndpointWithoutPortHasTorchrunsDefault) {
  EXPECT_EQ(parse({"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h"}).join.port, 29400);
  EXPECT_EQ(parse({"--nnodes", "2", "--rdzv-endpoint", "h"}).join.port, 29500);
}

base::Environment slurm_step(const char* node, const char* tasks_per_node, const char* tasks) {
  return {{"SLURM_JOB_ID", "7"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", node},
          {"SLURM_LOCALID", "0"},
          {"SLURM_NODEID", node},
          {"SLURM_STEP_NUM_TASKS", tasks},
          {"SLURM_STEP_NUM_NODES", "2"},
          {"SLURM_STEP_NODELIST", "node[01-02]"},
          {"SLURM_STEP_TASKS_PER_NODE", tasks_per_node}};
}

TEST(RunOptionsTest, ASlurmStepWithOneTaskANodeNeedsNoFlag) {
  const RunOptions options = parse({}, slurm_step("1", "1(x2)", "2"));
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kStatic);
  EXPECT_EQ(options.max_nodes, 2);
  EXPECT_EQ(options.join.node_rank, 1);
  EXPECT_EQ(options.join.is_host, false);
  EXPECT_EQ(options.join.host, "node01");
  EXPECT_GE(options.join.port, 20000);
  EXPECT_EQ(options.run_id, "7.0");
  EXPECT_EQ(options.local_world_size, 1);
  EXPECT_EQ(parse({"-n", "4"}, slurm_step("0", "1(x2)", "2")).local_world_size, 4);
}

TEST(RunOptionsTest, AStepGivesNoSecret) {
  base::Environment step = slurm_step("0", "1(x2)", "2");
  EXPECT_EQ(parse({}, step).join.token, "") << "what srun tells can be guessed";
  step.set("LOCKSTEP_JOB_TOKEN", "secret");
  EXPECT_EQ(parse({}, step).join.token, "secret");
}

TEST(RunOptionsTest, FlagsAboutNodesWinOverTheStep) {
  const RunOptions options = parse({"--standalone"}, slurm_step("1", "1(x2)", "2"));
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kAlone);
}

TEST(RunOptionsTest, SeveralLaunchersOnANodeAreRefused) {
  try {
    parse({}, slurm_step("0", "2,1", "3"));
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("wants one task a node, the step has 3 tasks on 2 nodes"));
  }
}

TEST(RunOptionsTest, FiltersSplitAtSingleCommas) {
  EXPECT_THAT(parse({"--duplicate-stdout-filters", "a,b,,c"}).stdout_filters, ElementsAre("a", "b,c"));
}

TEST(RunOptionsTest, ASignalThatEndsIsNotOnlyPassedOn) {
  const RunOptions options = parse({"--signals-to-handle", "SIGTERM,USR1"});
  EXPECT_THAT(options.stop_signals, ElementsAre(SIGTERM, SIGUSR1));
  EXPECT_THAT(options.notify_signals, ElementsAre(SIGUSR2));
}

TEST(RunOptionsTest, TheShutdownTimeoutIsTheFlagsThenTheVariables) {
  const base::Environment variable{{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"}};
  EXPECT_EQ(parse({}, variable).shutdown_timeout, std::chrono::seconds(7));
  EXPECT_EQ(parse({"--shutdown_timeout", "5"}, variable).shutdown_timeout, std::chrono::seconds(5));
  EXPECT_EQ(parse({"--shutdown-timeout", "30"}, variable).shutdown_timeout, std::chrono::seconds(30));
  EXPECT_EQ(parse({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", ""}}).shutdown_timeout, std::chrono::seconds(30));
  EXPECT_THAT(refusal({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "soon"}}),
              HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be seconds: 'soon'"));
  EXPECT_THAT(refusal({}, {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"}}),
              HasSubstr("TORCH_ELASTIC_SHUTDOWN_TIMEOUT must be seconds from 0 on: -1"));
}

TEST(RunOptionsTest, PrintCompletionNeedsNoProgram) {
  EXPECT_EQ(parse_run_options({"--print-completion", "bash"}, {}, {}).print_completion, "bash");
  EXPECT_EQ(parse_run_options({"--nnodes=2", "--print_completion=zsh"}, {}, {}).print_completion, "zsh");
}

TEST(RunOptionsTest, APrefixWhereThereAreSeveral) {
  EXPECT_EQ(parse({}).prefix_template, "");
  EXPECT_EQ(parse({"-n", "2"}).prefix_template, "[${role_name}${rank}]:");
  EXPECT_EQ(parse({"-n", "2", "--no-prefix"}).prefix_template, "");
  EXPECT_EQ(parse({"-n", "2"}, {{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> "}}).prefix_template,
            "<${rank}> ");
}

TEST(RunOptionsTest, ThePrefixTemplateIsTheFlagsThenTheVariables) {
  const base::Environment variable{{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "<${rank}> "}};
  EXPECT_EQ(parse({"--log-line-prefix-template", "${hostname}: "}, variable).prefix_template,
            "${hostname}: ");
  EXPECT_EQ(parse({"--log_line_prefix_template", "", "-n", "2"}, variable).prefix_template, "<${rank}> ");
  EXPECT_EQ(parse({"--log-line-prefix-template", "x"}).prefix_template, "x") << "a single rank too";
}

TEST(RunOptionsTest, TheHeartbeatTimeoutIsGivenInOneOfTwoWays) {
  const auto timeout = [](const std::string& conf) {
    return parse({"--nnodes", "2", "--master-addr", "head", "--rdzv-conf", conf}).join.heartbeat_timeout;
  };
  EXPECT_EQ(timeout(""), std::chrono::milliseconds(1500));
  EXPECT_EQ(timeout("heartbeat_timeout=7.5"), std::chrono::milliseconds(7500));
  EXPECT_EQ(timeout("keep_alive_interval=2"), std::chrono::seconds(6))
      << "torchrun allows three to be missed";
  EXPECT_EQ(timeout("keep_alive_max_attempt=4"), std::chrono::seconds(20)) << "and has one in five seconds";
  EXPECT_EQ(timeout("keep_alive_interval=2,heartbeat_timeout=9"), std::chrono::seconds(9));
}

TEST(RunOptionsTest, WhatIsUnkillableIsGivenUpInTime) {
  EXPECT_EQ(parse({}).kill_timeout, std::chrono::seconds(20));
  EXPECT_EQ(parse({"--kill-timeout", "0.5"}).kill_timeout, std::chrono::milliseconds(500));
}

struct Refusal {
  std::vector<std::string> arguments;
  std::string reason;
};

class RunOptionsRefusalTest : public testing::TestWithParam<Refusal> {};

TEST_P(RunOptionsRefusalTest, SaysWhy) {
  EXPECT_THAT(refusal(GetParam().arguments), HasSubstr(GetParam().reason));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, RunOptionsRefusalTest,
    testing::Values(
        Refusal{{"--nnodes", "0"}, "--nnodes must be a number or MIN:MAX with 1 <= MIN <= MAX: '0'"},
        Refusal{{"--nnodes", "3:2"}, "MIN:MAX with 1 <= MIN <= MAX: '3:2'"},
        Refusal{{"--nnodes", "1:2:3"}, "'1:2:3'"}, Refusal{{"--nnodes", "two"}, "'two'"},
        Refusal{{"-n", "0"}, "--nproc-per-node must be a number from 1 on, gpu, cpu or auto: '0'"},
        Refusal{{"-n", "2.0"}, "'2.0'"}, Refusal{{"-n", "gpu"}, "no GPU is visible here"},
        Refusal{{"--node-rank", "1"}, "--node-rank 1 of one node"},
        Refusal{{"--nnodes", "2", "--node-rank", "2"}, "--node-rank 2 is not one of 2 nodes"},
        Refusal{{"--standalone", "--rdzv-endpoint", "h:1"},
                "--standalone leaves no room for --rdzv_endpoint"},
        Refusal{{"--standalone", "--nnodes", "2"}, "--standalone is one node"},
        Refusal{{"--nnodes", "2", "--rdzv-backend", "c10d"}, "needs --rdzv-endpoint"},
        Refusal{{"--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h", "--master-port", "1"},
                "--master_port is for --rdzv-backend static"},
        Refusal{{"--nnodes", "1:2"}, "needs --rdzv-backend c10d"},
        Refusal{{"--nnodes", "2", "--rdzv-endpoint", "h:port"}, "must be HOST[:PORT]: 'h:port'"},
        Refusal{{"--nnodes", "2", "--rdzv-endpoint", ":1"}, "names no host"},
        Refusal{{"--nnodes", "2", "--rdzv-endpoint", "[::1"}, "no ']'"},
        Refusal{{"--nnodes", "2", "--master-port", "65536"}, "port from 0 to 65535: 65536"},
        Refusal{{"--nnodes", "2", "--master-port", "0"}, "it must not be 0"},
        Refusal{{"--rdzv-backend", "etcd"}, "must be one of static, c10d: 'etcd'"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "speed=1"}, "unknown key: 'speed'"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "join_timeout"}, "must be KEY=VALUE"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "join_timeout=long"}, "must be seconds: 'long'"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "is_host=maybe"}, "must be 0 or 1: 'maybe'"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "heartbeat_timeout=0.1"},
                "--rdzv-conf heartbeat_timeout must be from 0.5 to 3600 seconds: 0.1"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "keep_alive_interval=0"},
                "--rdzv-conf keep_alive_interval * keep_alive_max_attempt must be from 0.5"},
        Refusal{{"--nnodes", "2", "--rdzv-conf", "keep_alive_max_attempt=many"}, "must be a number: 'many'"},
        Refusal{{"--kill-timeout", "-1"}, "--kill-timeout must be seconds from 0 on: -1"},
        Refusal{{"--max-restarts", "-1"}, "max_restarts"},
        Refusal{{"--shutdown-timeout", "nan"}, "--shutdown-timeout must be seconds"},
        Refusal{{"--shutdown-timeout", "-1"}, "--shutdown-timeout must be seconds from 0 on: -1"},
        Refusal{{"--no-prefix", "--log-line-prefix-template", "x"},
                "--no-prefix leaves no room for --log-line-prefix-template"},
        Refusal{{"--print-completion", "fish"}, "print_completion must be one of bash, zsh, tcsh: 'fish'"},
        Refusal{{"--signals-to-handle", "SIGKILL"}, "'SIGKILL'"},
        Refusal{{"--notify-signals", "SIGFOO"}, "'SIGFOO'"},
        Refusal{{"--local-ranks-filter", "0,x"}, "--local-ranks-filter must be local ranks"},
        Refusal{{"-n", "2", "--local-ranks-filter", "2"}, "this node has ranks 0 to 1"},
        Refusal{{"-n", "2", "--tee", "5:1"}, "--tee names local rank 5"},
        Refusal{{"-m", "--no-python"}, "exclude each other"},
        Refusal{{"--start-method", "fork"}, "--start-method is for Python functions"},
        Refusal{{"--logs-specs", "x"}, "--logs-specs names a Python plug-in"},
        Refusal{{"--token-file", "/nonexistent"}, "--token-file cannot be read"},
        Refusal{{"--numa-binding", "moon"}, "numa_binding must be one of"},
        Refusal{{"--nproc", "2"}, "--nproc"}));

TEST(RunOptionsTest, SeveralNodesWithoutAnAddressGetAHint) {
  for (const char* rank : {"0", "1"}) {
    const RunOptions options = parse({"--nnodes", "2", "--node-rank", rank});
    ASSERT_EQ(options.hints.size(), 1u);
    EXPECT_THAT(options.hints[0], HasSubstr("--master-addr is not given"));
  }
  EXPECT_TRUE(parse({"--nnodes", "2", "--master-addr", "node0"}).hints.empty());
  EXPECT_TRUE(parse({"--nnodes", "2", "--rdzv-endpoint", "node0:1"}).hints.empty());
  EXPECT_TRUE(parse({"-n", "2"}).hints.empty()) << "one node needs none";
}

TEST(RunOptionsTest, ATokenFileIsForItsOwnerOnly) {
  const std::filesystem::path path =
      std::filesystem::temp_directory_path() / fmt::format("lockstep_token_test_{}", ::getpid());
  std::ofstream(path) << "secret\n";
  std::filesystem::permissions(path, std::filesystem::perms(0600));
  EXPECT_EQ(parse({"--token-file", path}).join.token, "secret");
  for (const int mode : {0640, 0604, 0620, 0601}) {
    std::filesystem::permissions(path, std::filesystem::perms(mode));
    EXPECT_THAT(refusal({"--token-file", path}),
                HasSubstr(fmt::format("its mode is {:04o}: chmod 600 '{}'", mode, path.string())));
  }
  std::filesystem::remove(path);
}

TEST(RunOptionsTest, WithoutAProgramItSaysWhereToWriteIt) {
  EXPECT_THROW(parse_run_options({"-n", "2"}, {}, {}), ConfigError);
}

TEST(StreamChoiceTest, OneNumberIsForAll) {
  const StreamChoice both = StreamChoice::parse("--tee", "3");
  EXPECT_TRUE(both.of(17).out && both.of(17).err);
  const StreamChoice err = StreamChoice::parse("--tee", "2");
  EXPECT_TRUE(!err.of(0).out && err.of(0).err);
  EXPECT_FALSE(StreamChoice::parse("--tee", "0").any());
}

TEST(StreamChoiceTest, RanksOfAnyNumberOfDigits) {
  const StreamChoice some = StreamChoice::parse("--tee", "0:3,12:1,345:2");
  EXPECT_TRUE(some.of(12).out && !some.of(12).err);
  EXPECT_TRUE(some.of(345).err);
  EXPECT_FALSE(some.of(1).out || some.of(1).err);
  EXPECT_EQ(some.highest_rank(), 345);
}

TEST(StreamChoiceTest, AnythingElseIsRefused) {
  for (const char* text : {"", "4", "-1", "1:", ":1", "1:4", "1:1,", ",1:1", "1:1,1:2", "a:1", "1:1;2:1",
                           "99999999999:1", "3,0:1", "01", "1:1,2"}) {
    EXPECT_THROW(StreamChoice::parse("--redirects", text), ConfigError) << text;
  }
}

// As DeepSpeed's launcher reads it; this machine is the second node.
TEST(RunOptionsTest, AHostfileStandsForTheFlagsOfNodes) {
  const test::TemporaryFolder folder;
  const std::string path = (folder.path() / "hosts").string();
  const std::string here = cluster::host_name();
  std::ofstream(path) << "first slots=2\n" << here << " slots=3\nlast slots=2\n";
  const RunOptions options = parse({"--hostfile", path});
  EXPECT_EQ(options.min_nodes, 3);
  EXPECT_EQ(options.max_nodes, 3);
  EXPECT_EQ(options.local_world_size, 3);
  EXPECT_EQ(options.join.kind, JoinOptions::Kind::kStatic);
  EXPECT_EQ(options.join.node_rank, 1);
  EXPECT_EQ(options.join.is_host, false);
  EXPECT_EQ(options.join.host, "first");
  EXPECT_EQ(options.join.host_option, "--hostfile");
  EXPECT_EQ(options.join.port, 29500);
  EXPECT_THAT(options.hints, testing::IsEmpty());
  EXPECT_EQ(parse({"--hostfile", path, "--exclude", "first"}).join.is_host, true);
  EXPECT_EQ(parse({"--hostfile", path, "--node-rank", "2"}).local_world_size, 2);
  const RunOptions alone = parse({"--hostfile", path, "--include", here});
  EXPECT_EQ(alone.join.kind, JoinOptions::Kind::kAlone);
  EXPECT_EQ(alone.local_world_size, 3);
  EXPECT_THAT(refusal({"--hostfile", path, "--nnodes", "2"}),
              HasSubstr("--hostfile leaves no room for --nnodes: remove one of them"));
  EXPECT_THAT(refusal({"--hostfile", path, "--node-rank", "3"}),
              HasSubstr("--node-rank 3 is not one of 3 nodes"));
  EXPECT_THAT(refusal({"--hostfile", path, "--exclude", here}), HasSubstr("is no node of the hostfile"));
  EXPECT_THAT(refusal({"--include", "first"}), HasSubstr("--include is for --hostfile"));
}

}  // namespace
}  // namespace lockstep::launcher
