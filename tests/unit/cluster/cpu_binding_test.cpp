#include "cluster/cpu_binding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>

namespace lockstep::cluster {
namespace {

using testing::ElementsAre;

// Two sockets with two NUMA nodes each; a node has four cores of two threads, and two
// caches. CPU c and c + 16 are threads of one core.
std::vector<LogicalCpu> big_machine() {
  std::vector<LogicalCpu> cpus;
  for (int id = 0; id < 32; ++id) {
    const int core = id % 16;
    cpus.push_back({id, core / 4, core / 8, core, core / 2 * 2});
  }
  return cpus;
}

TEST(CpuBindingTest, NodeAndSocket) {
  const auto nodes = bind_ranks(CpuBinding::kNode, big_machine(), {0, 3});
  EXPECT_THAT(nodes[0], ElementsAre(0, 1, 2, 3, 16, 17, 18, 19));
  EXPECT_THAT(nodes[1], ElementsAre(12, 13, 14, 15, 28, 29, 30, 31));
  const auto sockets = bind_ranks(CpuBinding::kSocket, big_machine(), {1});
  EXPECT_THAT(sockets[0], ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23));
}

TEST(CpuBindingTest, ExclusiveSharesWholeCoresFirstRanksGetMore) {
  const auto three = bind_ranks(CpuBinding::kExclusive, big_machine(), {2, 2, 0, 2});
  EXPECT_THAT(three[0], ElementsAre(8, 9, 24, 25));
  EXPECT_THAT(three[1], ElementsAre(10, 26));
  EXPECT_THAT(three[2], ElementsAre(0, 1, 2, 3, 16, 17, 18, 19));
  EXPECT_THAT(three[3], ElementsAre(11, 27));
}

TEST(CpuBindingTest, CoreComplexGivesACacheEach) {
  const auto caches = bind_ranks(CpuBinding::kCoreComplex, big_machine(), {0, 0, 0});
  EXPECT_THAT(caches[0], ElementsAre(0, 1, 16, 17));
  EXPECT_THAT(caches[1], ElementsAre(2, 3, 18, 19));
  EXPECT_EQ(caches[2], caches[0]);
}

TEST(CpuBindingTest, OnlyAllowedCpusAreGivenOut) {
  std::vector<LogicalCpu> allowed = big_machine();
  std::erase_if(allowed, [](const LogicalCpu& cpu) { return cpu.id != 1 && cpu.id != 2 && cpu.id != 18; });
  EXPECT_THAT(bind_ranks(CpuBinding::kNode, allowed, {0})[0], ElementsAre(1, 2, 18));
  EXPECT_THAT(bind_ranks(CpuBinding::kExclusive, allowed, {0, 0})[1], ElementsAre(2, 18));
  // The fuller cache first.
  EXPECT_THAT(bind_ranks(CpuBinding::kCoreComplex, allowed, {0})[0], ElementsAre(2, 18));
}

TEST(CpuBindingTest, TooFewCoresOrNoneAreRefused) {
  EXPECT_THROW(bind_ranks(CpuBinding::kExclusive, big_machine(), {0, 0, 0, 0, 0}), ConfigError);
  EXPECT_THROW(bind_ranks(CpuBinding::kNode, big_machine(), {7}), ConfigError);
  EXPECT_THROW(parse_cpu_binding("moon"), ConfigError);
}

TEST(CpuBindingTest, RanksFollowTheirGpusOrSpreadOverNodes) {
  EXPECT_THAT(numa_nodes_of_ranks(3, {3, 1}, big_machine()), ElementsAre(3, 1, 3));
  EXPECT_THAT(numa_nodes_of_ranks(8, {}, big_machine()), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(numa_nodes_of_ranks(2, {}, big_machine()), ElementsAre(0, 2));
}

class CpuTopologyTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove_all(root_); }
  void put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  const std::filesystem::path root_ = testing::TempDir() + "lockstep_cpu_topology_test";
};

TEST_F(CpuTopologyTest, ReadsSysfs) {
  put("devices/system/node/node0/cpulist", "0-1,4");
  put("devices/system/node/node1/cpulist", "2-3");
  put("devices/system/node/possible", "0-1");
  put("devices/system/cpu/cpu3/topology/physical_package_id", "1");
  put("devices/system/cpu/cpu3/topology/thread_siblings_list", "2-3");
  put("devices/system/cpu/cpu3/cache/index0/type", "Data");
  put("devices/system/cpu/cpu3/cache/index0/level", "1");
  put("devices/system/cpu/cpu3/cache/index0/shared_cpu_list", "3");
  put("devices/system/cpu/cpu3/cache/index1/type", "Unified");
  put("devices/system/cpu/cpu3/cache/index1/level", "3");
  put("devices/system/cpu/cpu3/cache/index1/shared_cpu_list", "0-3");
  put("devices/system/cpu/cpu3/cache/index2/type", "Instruction");
  put("devices/system/cpu/cpu3/cache/index2/level", "4");
  put("devices/system/cpu/cpu3/cache/index2/shared_cpu_list", "1");
  const std::vector<LogicalCpu> cpus = read_cpu_topology({4, 3}, root_);
  ASSERT_EQ(cpus.size(), 2u);
  EXPECT_EQ(cpus[0].id, 3);
  EXPECT_EQ(cpus[0].numa_node, 1);
  EXPECT_EQ(cpus[0].socket, 1);
  EXPECT_EQ(cpus[0].core, 2);
  EXPECT_EQ(cpus[0].cache, 0);
  EXPECT_EQ(cpus[1].numa_node, 0);
  EXPECT_EQ(cpus[1].core, 4);
}

TEST_F(CpuTopologyTest, GpusInTheOrderOfTheirAddresses) {
  put("driver/0000:81:00.0/information", "GPU UUID: \t GPU-bb");
  put("driver/0000:01:00.0/information", "Model: x\nGPU UUID: \t GPU-aa");
  put("bus/pci/devices/0000:81:00.0/numa_node", "1");
  put("bus/pci/devices/0000:01:00.0/numa_node", "-1");
  const std::string driver = root_ / "driver";
  EXPECT_THAT(gpu_numa_nodes({}, root_, driver), ElementsAre(0, 1));
  EXPECT_THAT(gpu_numa_nodes({{"CUDA_VISIBLE_DEVICES", "1,0"}}, root_, driver), ElementsAre(1, 0));
  EXPECT_THAT(gpu_numa_nodes({{"CUDA_VISIBLE_DEVICES", "GPU-bb"}}, root_, driver), ElementsAre(1));
  EXPECT_TRUE(gpu_numa_nodes({}, root_, root_ / "none").empty());
}

TEST_F(CpuTopologyTest, ThisMachineHasOne) {
  for (const LogicalCpu& cpu : read_cpu_topology({0})) EXPECT_EQ(cpu.core, 0);
}

TEST(CpuListTest, RangesAndNothingElse) {
  EXPECT_THAT(parse_cpu_list("0-2,8"), ElementsAre(0, 1, 2, 8));
  for (const char* text : {"", "a", "3-1", "1-", "-1", "1,,2", "0-99999999"}) {
    EXPECT_THROW(parse_cpu_list(text), ConfigError) << text;
  }
}

}  // namespace
}  // namespace lockstep::cluster
