#include "launch/agent/worker_environment.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "cluster/devices.h"
#include "cluster/topology.h"

namespace lockstep::launcher {
namespace {

// Every worker sees one GPU, as number 0.
void set_virtual_local_rank(base::Environment& environment, int local_rank) {
  const cluster::VisibleDevices visible =
      cluster::parse_visible_devices(environment.get("CUDA_VISIBLE_DEVICES"));
  if (visible.restricted && static_cast<size_t>(local_rank) >= visible.devices.size()) {
    throw ConfigError("run", fmt::format("--virtual-local-rank: local rank {} has no GPU in "
                                         "CUDA_VISIBLE_DEVICES: '{}'",
                                         local_rank, environment.get("CUDA_VISIBLE_DEVICES").value_or("")));
  }
  environment.set("LOCAL_RANK", "0");
  environment.set("CUDA_VISIBLE_DEVICES",
                  visible.restricted ? visible.devices[local_rank] : std::to_string(local_rank));
}

void replace_all(std::string& text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size())) {
    text.replace(at, from.size(), to);
  }
}

}  // namespace

base::Environment worker_environment(const base::Environment& ours, const RunOptions& options,
                                     const Generation& generation, int local_rank,
                                     const std::string& error_file) {
  base::Environment environment = ours;
  const auto set = [&](const char* name, int value) { environment.set(name, std::to_string(value)); };
  const int rank = generation.first_rank() + local_rank;
  environment.set("LOCKSTEP_LAUNCHER", "lockstep");
  set("LOCKSTEP_GENERATION", generation.number);
  set("RANK", rank);
  set("LOCAL_RANK", local_rank);
  set("WORLD_SIZE", generation.world_size());
  set("LOCAL_WORLD_SIZE", generation.local_world_size());
  set("GROUP_RANK", generation.node_rank);
  set("GROUP_WORLD_SIZE", static_cast<int>(generation.nodes.size()));
  environment.set("ROLE_NAME", options.role);
  set("ROLE_RANK", generation.role_first_rank() + local_rank);
  set("ROLE_WORLD_SIZE", generation.role_world_size());
  if (!generation.master_addr.empty()) {
    environment.set("MASTER_ADDR", generation.master_addr);
    set("MASTER_PORT", generation.master_port);
  }
  set("TORCHELASTIC_RESTART_COUNT", generation.restart_count);
  set("TORCHELASTIC_MAX_RESTARTS", options.max_restarts);
  environment.set("TORCHELASTIC_RUN_ID", options.run_id);
  // The store is rank 0's.
  environment.set("TORCHELASTIC_USE_AGENT_STORE", "False");
  environment.set("TORCHELASTIC_ERROR_FILE", error_file);
  if (!environment.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) set("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1);
  if (!environment.has("OMP_NUM_THREADS") && generation.local_world_size() > 1) {
    set("OMP_NUM_THREADS", cluster::threads_of_this_process(ours, generation.local_world_size()));
  }
  if (options.virtual_local_rank) set_virtual_local_rank(environment, local_rank);
  return environment;
}

std::string line_prefix(const RunOptions& options, const Generation& generation, int local_rank) {
  std::string prefix = options.prefix_template;
  replace_all(prefix, "${role_name}", options.role);
  replace_all(prefix, "${rank}", std::to_string(generation.first_rank() + local_rank));
  replace_all(prefix, "${local_rank}", std::to_string(local_rank));
  return prefix;
}

}  // namespace lockstep::launcher
