#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <ostream>
#include <string>
#include <vector>

#include "base/environment.h"
#include "cluster/placement.h"

// Tables of environments: each case is a request, an environment, and the one line
// that must come out of it, either every field of the placement or the whole error.

namespace lockstep::cluster {

struct PlacementCase {
  const char* name;
  PlacementRequest request;
  base::Environment environment;
  std::string expected;
};

inline void PrintTo(const PlacementCase& value, std::ostream* out) { *out << value.name; }

// Task 1 of 2 of a step on one node.
inline const base::Environment kSlurmOneNode{{"SLURM_JOB_ID", "7"},
                                             {"SLURM_STEP_ID", "1"},
                                             {"SLURM_PROCID", "1"},
                                             {"SLURM_LOCALID", "1"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_STEP_NUM_TASKS", "2"},
                                             {"SLURM_STEP_NUM_NODES", "1"},
                                             {"SLURM_STEP_NODELIST", "node01"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "2"}};

inline std::string nodes_of(const std::vector<std::string>& nodes, const std::vector<int>& ranks) {
  if (nodes.size() != ranks.size()) return fmt::format("[{} nodes, {} counts]", nodes.size(), ranks.size());
  std::string result;
  for (size_t i = 0; i < nodes.size(); ++i)
    result += fmt::format("{}{}:{}", i > 0 ? " " : "", nodes[i], ranks[i]);
  return "[" + result + "]";
}

inline std::string tail_of(const Rendezvous& rendezvous, const std::string& job_id) {
  std::string result = " " + rendezvous.to_string();
  if (rendezvous.agent_hosts_store) result += " agent";
  if (rendezvous.listen_fd != -1) result += fmt::format(" fd {}", rendezvous.listen_fd);
  if (!job_id.empty()) result += " job " + job_id;
  return result;
}

// "slurm 3/4 local 1/2 node 1/2 [node01:2 node02:2] tcp://node01:23456 job 7.0"
inline std::string describe(const RankMap& map) {
  std::string result =
      fmt::format("{} {}/{} local {}/{} node {}/{} ", to_string(map.launcher), map.rank, map.world_size,
                  map.local_rank, map.local_world_size, map.node_rank, map.num_nodes);
  result += nodes_of(map.nodes, map.ranks_per_node) + tail_of(map.rendezvous, map.job_id);
  if (map.restart_count > 0) result += fmt::format(" restart {}", map.restart_count);
  return result;
}

// "slurm spawns 2..3 of 4 node 1/2 [node01:2 node02:2] tcp://node01:23456 job 7.0"
inline std::string describe(const Placement& placement) {
  std::string result;
  if (placement.spawn) {
    const SpawnPlan& plan = *placement.spawn;
    result = fmt::format("{} spawns {}..{} of {} node {}/{} ", to_string(placement.map.launcher),
                         plan.first_rank, plan.first_rank + plan.local_world_size - 1, plan.world_size,
                         plan.node_rank, plan.num_nodes);
    result += nodes_of(plan.nodes, plan.ranks_per_node) + tail_of(plan.rendezvous, plan.job_id);
  } else {
    result = describe(placement.map);
  }
  for (const std::string& warning : placement.warnings) result += " | " + warning;
  return result;
}

// The warning at the end of a placement whose launcher provides no local ranks.
inline constexpr char kOneRankAssumed[] =
    " | the number of ranks on this machine is unknown, so 1 is assumed: set LOCAL_RANK and "
    "LOCAL_WORLD_SIZE";

inline std::string outcome(const PlacementCase& test) {
  try {
    const Placement placement = decide_placement(test.request, test.environment, "vm");
    EXPECT_EQ(placement.map.host, "vm");
    return describe(placement);
  } catch (const ConfigError& error) {
    return error.what();
  }
}

class PlacementTest : public testing::TestWithParam<PlacementCase> {};

inline std::string case_name(const testing::TestParamInfo<PlacementCase>& info) { return info.param.name; }

// The environment with more variables, or other values of the same ones.
inline base::Environment with(base::Environment environment,
                              std::initializer_list<std::pair<const std::string, std::string>> changes) {
  for (const auto& [name, value] : changes) environment.set(name, value);
  return environment;
}

inline base::Environment without(base::Environment environment, std::initializer_list<const char*> names) {
  for (const char* name : names) environment.erase(name);
  return environment;
}

}  // namespace lockstep::cluster
