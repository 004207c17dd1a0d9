#include "launcher/agent/worker_command.h"

#include <unistd.h>

#include <fmt/format.h>
#include <lockstep/error.h>

#include <cctype>
#include <filesystem>
#include <map>
#include <optional>

#include "base/process.h"
#include "cluster/devices.h"
#include "cluster/node_resources.h"
#include "launcher/agent/run_options.h"

namespace lockstep::launcher {
namespace fs = std::filesystem;
namespace {

bool is_executable_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

[[noreturn]] void refuse_command(const std::string& sentence) { throw ConfigError("run", sentence); }

std::string program_of(const std::string& name, const base::Environment& environment) {
  if (name.find('/') == std::string::npos) {
    if (const std::optional<std::string> found = base::find_program(name, environment)) return *found;
    if (is_executable_file(name)) {
      refuse_command(fmt::format("'{}' is not in PATH; write ./{} for the one in this folder", name, name));
    }
    refuse_command(fmt::format("the program is not in PATH and not in this folder: '{}'", name));
  }
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) refuse_command(fmt::format("the program is a folder: '{}'", name));
  if (!fs::exists(name, ignored)) refuse_command(fmt::format("the program does not exist: '{}'", name));
  if (!is_executable_file(name)) {
    refuse_command(
        fmt::format("the program may not be executed: '{}' (chmod +x it, or use --run-path for a "
                    "Python script without .py)",
                    name));
  }
  return name;
}

std::string find_python(const base::Environment& environment) {
  const std::optional<std::string> given = environment.get("PYTHON_EXEC");
  if (given && !given->empty()) return program_of(*given, environment);
  if (const auto found = base::find_program("python3", environment)) return *found;
  if (const auto found = base::find_program("python", environment)) return *found;
  refuse_command("no python3 in PATH to run the script with; PYTHON_EXEC may name one");
}

WorkerCommand with_python(std::vector<std::string> before, const std::vector<std::string>& command,
                          const base::Environment& environment) {
  WorkerCommand result;
  result.program = find_python(environment);
  result.arguments = {result.program, "-u"};
  result.arguments.insert(result.arguments.end(), before.begin(), before.end());
  result.arguments.insert(result.arguments.end(), command.begin(), command.end());
  return result;
}

WorkerCommand python_script(const std::vector<std::string>& command, const base::Environment& environment) {
  std::error_code ignored;
  if (!fs::is_regular_file(command.front(), ignored)) {
    refuse_command(fmt::format("the script does not exist: '{}'", command.front()));
  }
  return with_python({}, command, environment);
}

}  // namespace

WorkerCommand resolve_command(CommandKind kind, const std::vector<std::string>& command,
                              const base::Environment& environment) {
  if (command.empty() || command.front().empty()) {
    refuse_command("which program? write it after the flags: lockstep run -n 2 ./program --its-flag");
  }
  if (kind == CommandKind::kModule) return with_python({"-m"}, command, environment);
  const bool is_python = kind == CommandKind::kDetect && fs::path(command.front()).extension() == ".py";
  if (is_python || kind == CommandKind::kScript) return python_script(command, environment);
  return {program_of(command.front(), environment), command};
}

// --- the environment and the line prefix ---

namespace {

void show_one_gpu(base::Environment& environment, const char* variable, int local_rank) {
  const cluster::VisibleDevices visible = cluster::parse_visible_devices(environment.get(variable), variable);
  if (visible.restricted && static_cast<size_t>(local_rank) >= visible.devices.size()) {
    throw ConfigError("run", fmt::format("--virtual-local-rank: local rank {} has no GPU in {}: '{}'",
                                         local_rank, variable, environment.get(variable).value_or("")));
  }
  environment.set(variable, visible.restricted ? visible.devices[local_rank] : std::to_string(local_rank));
}

// Every worker sees one GPU, as number 0.
void set_virtual_local_rank(base::Environment& environment, int local_rank) {
  environment.set("LOCAL_RANK", "0");
  environment.erase("GPUS_PER_NODE");  // counts GPUs that the worker does not see
  show_one_gpu(environment, "CUDA_VISIBLE_DEVICES", local_rank);
  // ROCm's HIP reads CUDA's variable only if its own is unset. Both count in the list of
  // ROCR_VISIBLE_DEVICES.
  if (environment.has("HIP_VISIBLE_DEVICES")) show_one_gpu(environment, "HIP_VISIBLE_DEVICES", local_rank);
}

bool is_name_character(char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)) != 0; }

// Replaces $NAME and ${NAME} by values, and $$ by $. Any other text after a $ stays, as with
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
  // The ranks do not get the launchers' secret, and these descriptors are an outer launcher's.
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
  // Rank 0 hosts the store, not the launcher.
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
