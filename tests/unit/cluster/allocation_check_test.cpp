#include "cluster/allocation_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::cluster {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct AllocationCase {
  const char* name;
  int ranks;  // on this node
  base::Environment environment;
  AllocationFacts facts;
  std::string expected;  // the problems, with " | " between them
  Launcher launcher = Launcher::kSlurm;
};

void PrintTo(const AllocationCase& value, std::ostream* out) { *out << value.name; }

base::Environment job(std::initializer_list<std::pair<const std::string, std::string>> more = {}) {
  base::Environment environment{{"SLURM_JOB_ID", "7"}};
  for (const auto& [name, value] : more) environment.set(name, value);
  return environment;
}

const char kInheritance[] =
    "Slurm 22.05 to 23.02 does not pass --cpus-per-task from sbatch to srun: export "
    "SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK before srun, or repeat srun --cpus-per-task";

const AllocationCase kCases[] = {
    {"AllFits",
     4,
     job({{"SLURM_CPUS_PER_TASK", "8"}, {"SLURM_GPUS_ON_NODE", "4"}, {"SLURM_MEM_PER_NODE", "65536"}}),
     {.wants_gpu = true, .visible_gpus = 4, .affinity_cpus = 8, .own_cpus = true},
     ""},
    {"OutsideSlurm", 2, {}, {.affinity_cpus = 2}, ""},
    {"OneRankOfALaptopWithFourGpus", 1, {}, {.wants_gpu = true, .visible_gpus = 4, .affinity_cpus = 8}, ""},

    {"NoGpu",
     2,
     job(),
     {.wants_gpu = true, .visible_gpus = 0, .affinity_cpus = 8},
     "no GPU is visible: ask for --gpus-per-node=2, and look at CUDA_VISIBLE_DEVICES unset, "
     "SLURM_GPUS_ON_NODE unset"},
    {"NoAmdGpu",
     2,
     job({{"ROCR_VISIBLE_DEVICES", "-1"}, {"SLURM_JOB_GPUS", "0,1"}}),
     {.wants_gpu = true, .visible_gpus = 0, .affinity_cpus = 8},
     "no GPU is visible: ask for --gpus-per-node=2, and look at CUDA_VISIBLE_DEVICES unset, "
     "SLURM_GPUS_ON_NODE unset, ROCR_VISIBLE_DEVICES='-1', SLURM_JOB_GPUS='0,1'"},
    {"CpuJobNeedsNoGpu", 2, job(), {.visible_gpus = 0, .affinity_cpus = 8}, ""},
    {"OneGpuOnEachOfSeveralNodes",
     1,
     job({{"SLURM_GPUS_ON_NODE", "1"}, {"SLURM_JOB_NUM_NODES", "4"}}),
     {.wants_gpu = true, .visible_gpus = 1, .affinity_cpus = 8},
     "4 nodes with one GPU each: gradients then always cross the network. Use all GPUs of a node before a "
     "second "
     "node, as --nodes=1 --gpus-per-node=4"},
    {"FewerGpusThanRanks",
     4,
     job({{"SLURM_GPUS_ON_NODE", "2"}}),
     {.wants_gpu = true, .visible_gpus = 2, .affinity_cpus = 16},
     "4 ranks of this node share 2 GPUs: ask for --gpus-per-node=4 or start --ntasks-per-node=2"},
    {"TwoRanksOnOneGpu",
     2,
     job({{"SLURM_GPUS_ON_NODE", "1"}}),
     {.wants_gpu = true, .visible_gpus = 1, .affinity_cpus = 16},
     "2 ranks of this node share 1 GPU: ask for --gpus-per-node=2 or start --ntasks-per-node=1"},
    {"OneGpuBoundToEachTask",
     2,
     job({{"SLURM_GPUS_ON_NODE", "2"}}),
     {.wants_gpu = true, .visible_gpus = 1, .affinity_cpus = 16},
     "each task sees only its own GPU, which hides the others of the node from it and makes copies between "
     "them "
     "slow: use --gpus-per-node instead of --gpus-per-task, and srun --gpu-bind=none"},
    {"IdleGpus",
     1,
     job({{"SLURM_GPUS_ON_NODE", "4"}}),
     {.wants_gpu = true, .visible_gpus = 4, .affinity_cpus = 16},
     "1 rank of this node use 1 of 4 GPUs: start --ntasks-per-node=4 or ask for --gpus-per-node=1"},

    {"OneCoreTrap",
     4,
     job({{"SLURM_CPUS_PER_TASK", "8"}}),
     {.affinity_cpus = 1, .own_cpus = true},
     fmt::format("each rank has 1 CPU though SLURM_CPUS_PER_TASK='8': {}", kInheritance)},
    {"SharedMaskTooSmall",
     4,
     job({{"SLURM_CPUS_PER_TASK", "8"}}),
     {.affinity_cpus = 16},
     fmt::format("each rank has 4 CPUs though SLURM_CPUS_PER_TASK='8': {}", kInheritance)},
    {"OneLauncherHoldsTheCpusOfAllItsRanks",
     4,
     job({{"SLURM_CPUS_PER_TASK", "32"}}),
     {.affinity_cpus = 32},
     "",
     Launcher::kTorchrun},
    {"OneLauncherWithOneCore",
     4,
     job({{"SLURM_CPUS_PER_TASK", "32"}}),
     {.affinity_cpus = 1},
     fmt::format("each rank has 0 CPUs though SLURM_CPUS_PER_TASK='32': {}", kInheritance),
     Launcher::kTorchrun},
    {"OneCoreOfMany",
     2,
     job({{"SLURM_CPUS_ON_NODE", "16"}}),
     {.affinity_cpus = 1, .own_cpus = true},
     "each rank has 1 CPU though the job has 16 on this node: srun --cpus-per-task=8"},
    {"MoreRanksThanCpus",
     4,
     job(),
     {.affinity_cpus = 2},
     "4 ranks of this node share 2 CPUs: ask for --cpus-per-task=2 or more, or start --ntasks-per-node=2"},
    {"OneCpuFeedsAGpu",
     2,
     job(),
     {.wants_gpu = true, .visible_gpus = 2, .affinity_cpus = 2},
     "each rank has 1 CPU, and loading data waits for computing: ask for --cpus-per-task=2 or more"},
    {"OneCpuIsEnoughForACpuRank", 2, job(), {.affinity_cpus = 2}, ""},

    {"LittleMemoryOfTheNode",
     4,
     job({{"SLURM_MEM_PER_NODE", "2000"}}),
     {.affinity_cpus = 8},
     "4 ranks of this node have 500 MiB each and need 1024: ask for --mem=4096M"},
    {"LittleMemoryByCpu",
     4,
     job({{"SLURM_MEM_PER_CPU", "256"}, {"SLURM_CPUS_ON_NODE", "8"}}),
     {.affinity_cpus = 8},
     "4 ranks of this node have 512 MiB each and need 1024: ask for --mem=4096M"},
    {"LittleMemoryOfTheControlGroup",
     2,
     job({{"SLURM_MEM_PER_NODE", "65536"}}),
     {.affinity_cpus = 8, .memory_limit_bytes = 4 * kGiB, .memory_per_rank_bytes = 3 * kGiB},
     "2 ranks of this node have 2048 MiB each and need 3072: ask for --mem=6144M"},
    {"WholeNode", 4, job({{"SLURM_MEM_PER_NODE", "0"}}), {.affinity_cpus = 8}, ""},
};

class AllocationTest : public testing::TestWithParam<AllocationCase> {};

TEST_P(AllocationTest, SaysWhatDoesNotFit) {
  const AllocationCase& test = GetParam();
  RankMap map;
  map.launcher = test.launcher;
  map.world_size = map.local_world_size = test.ranks;
  EXPECT_EQ(fmt::format("{}", fmt::join(check_allocation(map, test.environment, test.facts), " | ")),
            test.expected);
}

INSTANTIATE_TEST_SUITE_P(Table, AllocationTest, testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(AllocationCheckTest, SaysAllProblemsAtOnce) {
  RankMap map;
  map.launcher = Launcher::kSlurm;
  map.world_size = map.local_world_size = 4;
  const AllocationFacts facts{.wants_gpu = true, .visible_gpus = 2, .affinity_cpus = 2};
  EXPECT_EQ(check_allocation(map, job({{"SLURM_MEM_PER_NODE", "100"}}), facts).size(), 3);
}

TEST(AllocationCheckTest, ABrokenVariableIsAnError) {
  EXPECT_THROW(check_allocation({}, job({{"SLURM_CPUS_PER_TASK", "many"}}), {}), ConfigError);
}

}  // namespace
}  // namespace lockstep::cluster
