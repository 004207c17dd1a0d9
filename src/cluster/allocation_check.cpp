#include "cluster/allocation_check.h"

#include <fmt/format.h>

#include "cluster/node_resources.h"
#include "cluster/variables.h"

namespace lockstep::cluster {
namespace {

constexpr int64_t kMebibyte = int64_t{1} << 20;

struct Check {
  const RankMap& map;
  const Variables variables;
  const AllocationFacts& facts;
  std::vector<std::string> problems;

  void add(std::string problem) { problems.push_back(std::move(problem)); }
  int ranks() const { return map.local_world_size; }
  bool in_slurm() const { return variables.has("SLURM_JOB_ID"); }
};

std::string ranks_text(int count) { return fmt::format("{} rank{}", count, count == 1 ? "" : "s"); }
std::string gpus_text(int count) { return fmt::format("{} GPU{}", count, count == 1 ? "" : "s"); }
std::string cpus_text(int count) { return fmt::format("{} CPU{}", count, count == 1 ? "" : "s"); }

void check_one_visible_gpu(Check& check, int on_node) {
  if (on_node < check.ranks()) {
    check.add(
        fmt::format("{} of this node share {}: ask for --gpus-per-node={} or start "
                    "--ntasks-per-node={}",
                    ranks_text(check.ranks()), gpus_text(on_node), check.ranks(), on_node));
    return;
  }
  check.add(
      "each task sees only its own GPU, which hides the others of the node from it and makes copies between "
      "them slow: use --gpus-per-node instead of --gpus-per-task, and srun --gpu-bind=none");
}

// The variables that may hide GPUs. ROCm's and Slurm's lists are shown only if they are set.
std::string gpu_variables(const Check& check) {
  Names names{"CUDA_VISIBLE_DEVICES", "SLURM_GPUS_ON_NODE"};
  for (const char* const name :
       {"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"}) {
    if (check.variables.has(name)) names.emplace_back(name);
  }
  return check.variables.show(names);
}

void check_gpus(Check& check) {
  if (!check.facts.wants_gpu) return;
  const int visible = check.facts.visible_gpus;
  const int on_node = check.variables.number("SLURM_GPUS_ON_NODE", 0, 1024).value_or(visible);
  if (visible == 0) {
    check.add(fmt::format("no GPU is visible: ask for --gpus-per-node={}, and look at {}", check.ranks(),
                          gpu_variables(check)));
  } else if (visible == 1 && check.ranks() > 1) {
    check_one_visible_gpu(check, on_node);
  } else if (visible < check.ranks()) {
    check.add(
        fmt::format("{} of this node share {}: ask for --gpus-per-node={} or start "
                    "--ntasks-per-node={}",
                    ranks_text(check.ranks()), gpus_text(visible), check.ranks(), visible));
  } else if (visible > check.ranks() && on_node > check.ranks() && check.in_slurm()) {
    check.add(
        fmt::format("{} of this node use {} of {}: start --ntasks-per-node={} or ask for "
                    "--gpus-per-node={}",
                    ranks_text(check.ranks()), check.ranks(), gpus_text(visible), visible, check.ranks()));
  }
}

// Princeton's page: take all GPUs of a node before a second node.
void check_gpus_of_nodes(Check& check) {
  const std::optional<int> nodes = check.variables.count("SLURM_JOB_NUM_NODES");
  const int on_node = check.variables.number("SLURM_GPUS_ON_NODE", 0, 1024).value_or(0);
  if (!check.facts.wants_gpu || on_node != 1 || nodes.value_or(1) < 2) return;
  check.add(
      fmt::format("{} nodes with one GPU each: gradients then always cross the network. Use all GPUs of a "
                  "node before a second "
                  "node, as --nodes=1 --gpus-per-node={}",
                  *nodes, *nodes));
}

// CPUs that a rank is certain to have.
int cpus_per_rank(const Check& check) {
  return check.facts.own_cpus ? check.facts.affinity_cpus : check.facts.affinity_cpus / check.ranks();
}

constexpr char kInheritance[] =
    "Slurm 22.05 to 23.02 does not pass --cpus-per-task from sbatch to srun: export "
    "SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun, or repeat srun --cpus-per-task";

void check_cpus(Check& check) {
  const int cpus = cpus_per_rank(check);
  const std::optional<int> asked = check.variables.count("SLURM_CPUS_PER_TASK");
  // With one launcher per node, its task has the CPUs of all its ranks.
  const bool task_is_rank = check.map.launcher == Launcher::kSlurm;
  const int wanted = asked && !task_is_rank ? *asked / check.ranks() : asked.value_or(1);
  if (asked && cpus < wanted) {
    check.add(fmt::format("each rank has {} though SLURM_CPUS_PER_TASK='{}': {}", cpus_text(cpus), *asked,
                          kInheritance));
    return;
  }
  if (cpus > 1) return;
  const int on_node = check.variables.count("SLURM_CPUS_ON_NODE").value_or(0);
  if (on_node / check.ranks() > 1) {
    check.add(fmt::format("each rank has {} though the job has {} on this node: srun --cpus-per-task={}",
                          cpus_text(cpus), on_node, on_node / check.ranks()));
  } else if (cpus == 0) {
    check.add(fmt::format(
        "{} of this node share {}: ask for --cpus-per-task=2 or more, or start "
        "--ntasks-per-node={}",
        ranks_text(check.ranks()), cpus_text(check.facts.affinity_cpus), check.facts.affinity_cpus));
  } else if (check.facts.wants_gpu) {
    check.add("each rank has 1 CPU, and loading data waits for computing: ask for --cpus-per-task=2 or more");
  }
}

// Bytes that Slurm gives all ranks of this node; nullopt: all memory of the node.
std::optional<int64_t> slurm_memory(const Check& check) {
  constexpr int kMax = 1 << 30;
  // 0: the whole node.
  if (const auto mib = check.variables.number("SLURM_MEM_PER_NODE", 0, kMax); mib && *mib > 0) {
    return *mib * kMebibyte;
  }
  const std::optional<int> per_cpu = check.variables.number("SLURM_MEM_PER_CPU", 0, kMax);
  const std::optional<int> cpus = check.variables.count("SLURM_CPUS_ON_NODE");
  if (per_cpu && cpus && *per_cpu > 0) return int64_t{*per_cpu} * *cpus * kMebibyte;
  return std::nullopt;
}

void check_memory(Check& check) {
  std::optional<int64_t> total = check.facts.memory_limit_bytes;
  const std::optional<int64_t> slurm = slurm_memory(check);
  if (slurm && (!total || *slurm < *total)) total = slurm;
  if (!total) return;
  const int64_t needed = check.facts.memory_per_rank_bytes;
  if (*total / check.ranks() >= needed) return;
  const int64_t needed_mib = (needed * check.ranks() + kMebibyte - 1) / kMebibyte;
  check.add(fmt::format("{} of this node have {} MiB each and need {}: ask for --mem={}M",
                        ranks_text(check.ranks()), *total / check.ranks() / kMebibyte, needed / kMebibyte,
                        needed_mib));
}

}  // namespace

AllocationFacts facts_of_process(const base::Environment& environment, int local_world_size,
                                 int visible_gpus) {
  AllocationFacts facts;
  facts.wants_gpu = Variables(environment).number("SLURM_GPUS_ON_NODE", 0, 1024).value_or(0) > 0;
  facts.visible_gpus = visible_gpus;
  facts.affinity_cpus = static_cast<int>(affinity_cpus().size());
  facts.own_cpus = has_own_cpus(environment, local_world_size);
  return facts;
}

std::vector<std::string> check_allocation(const RankMap& map, const base::Environment& environment,
                                          const AllocationFacts& facts) {
  Check check{map, Variables(environment), facts, {}};
  check_gpus(check);
  check_gpus_of_nodes(check);
  check_cpus(check);
  check_memory(check);
  return std::move(check.problems);
}

}  // namespace lockstep::cluster
