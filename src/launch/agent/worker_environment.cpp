#include "launch/agent/worker_environment.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cctype>
#include <map>

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

bool is_name_character(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Replaces $NAME and ${NAME} by values, and $$ by $. Whatever else follows a $ stays, as with
// Python's string.Template.safe_substitute, which torchrun uses.
std::string expand(const std::string& text, const std::map<std::string, std::string>& values) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    if (text[at] != '$') {
      result += text[at++];
      continue;
    }
    if (text.compare(at, 2, "$$") == 0) {
      result += '$';
      at += 2;
      continue;
    }
    const bool braced = text.compare(at, 2, "${") == 0;
    const size_t begin = at + (braced ? 2 : 1);
    size_t end = begin;
    while (end < text.size() && is_name_character(text[end])) ++end;
    const auto value = values.find(text.substr(begin, end - begin));
    if (value == values.end() || (braced && (end == text.size() || text[end] != '}'))) {
      result += text[at++];
      continue;
    }
    result += value->second;
    at = braced ? end + 1 : end;
  }
  return result;
}

}  // namespace

base::Environment worker_environment(const base::Environment& ours, const RunOptions& options,
                                     const Generation& generation, int local_rank,
                                     const std::string& error_file) {
  base::Environment environment = ours;
  const auto set = [&](const char* name, int value) { environment.set(name, std::to_string(value)); };
  const int rank = generation.first_rank() + local_rank;
  // A launcher's secret is not its ranks'; descriptors are those of an outer launcher.
  for (const char* name : {"LOCKSTEP_JOB_TOKEN", "LOCKSTEP_KEY_FD", "LOCKSTEP_KEY_PID", "LOCKSTEP_KEY_NAME",
                           "LOCKSTEP_STORE_FD"}) {
    environment.erase(name);
  }
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
  if (!options.key_name.empty()) environment.set("LOCKSTEP_KEY_NAME", options.key_name);
  if (options.passes_token)
    environment.set("LOCKSTEP_JOB_TOKEN", ours.get("LOCKSTEP_JOB_TOKEN").value_or(""));
  if (!environment.has("TORCH_NCCL_ASYNC_ERROR_HANDLING")) set("TORCH_NCCL_ASYNC_ERROR_HANDLING", 1);
  if (!environment.has("OMP_NUM_THREADS") && generation.local_world_size() > 1) {
    set("OMP_NUM_THREADS", cluster::threads_of_this_process(ours, generation.local_world_size()));
  }
  if (options.virtual_local_rank) set_virtual_local_rank(environment, local_rank);
  return environment;
}

std::string line_prefix(const RunOptions& options, const Generation& generation, int local_rank) {
  if (options.prefix_template.empty()) return {};
  return expand(options.prefix_template, {{"role_name", options.role},
                                          {"rank", std::to_string(generation.first_rank() + local_rank)},
                                          {"local_rank", std::to_string(local_rank)},
                                          {"hostname", cluster::host_name()}});
}

}  // namespace lockstep::launcher
