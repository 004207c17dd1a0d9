#include "cluster/amd_gpus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>

#include "cluster/cpu_binding.h"
#include "cluster/devices.h"
#include "support/amd_machine.h"
#include "support/temporary_folder.h"

namespace lockstep::cluster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StrEq;
using testing::ThrowsMessage;

class AmdGpusTest : public testing::Test {
 protected:
  std::filesystem::path node(int number) const {
    return folder_.path() / "class/kfd/kfd/topology/nodes" / std::to_string(number);
  }
  // The last digits of the UUIDs of make_amd_machine().
  std::vector<std::string> seen(const base::Environment& environment) const {
    std::vector<std::string> numbers;
    for (const AmdGpu& gpu : visible_amd_gpus(environment, sysfs())) numbers.push_back(gpu.uuid.substr(19));
    return numbers;
  }
  std::string sysfs() const { return folder_.path(); }

  test::TemporaryFolder folder_;
};

TEST_F(AmdGpusTest, TheDriverDescribesThem) {
  test::make_amd_machine(sysfs(), 2);
  const std::vector<AmdGpu> gpus = visible_amd_gpus({}, sysfs());
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].target, "gfx90a");
  EXPECT_EQ(gpus[0].name, "AMD Instinct MI250X");
  EXPECT_EQ(gpus[0].uuid, "GPU-8000000000000001");
  EXPECT_EQ(gpus[0].description(), "AMD Instinct MI250X, gfx90a");
  EXPECT_EQ(gpus[1].uuid, "GPU-8000000000000002");
  EXPECT_EQ(gpus[1].numa_node, 1);
}

// A laptop's processor is one node with CPU cores and graphics.
TEST_F(AmdGpusTest, TheGraphicsOfAProcessorAreNoGpu) {
  test::make_amd_machine(sysfs(), 1);
  std::ofstream(node(0) / "properties") << "cpu_cores_count 16\nsimd_count 8\ngfx_target_version 110003\n";
  EXPECT_EQ(visible_amd_gpus({}, sysfs()).size(), 1u);
}

TEST_F(AmdGpusTest, WithoutABoardTheChipIsNamed) {
  test::make_amd_machine(sysfs(), 1);
  std::filesystem::remove_all(folder_.path() / "class/drm");
  EXPECT_EQ(visible_amd_gpus({}, sysfs()).at(0).description(), "aldebaran, gfx90a");
  std::ofstream(node(1) / "properties") << "simd_count 256\ngfx_target_version 110001\n";
  std::ofstream(node(1) / "name") << "\n";
  const AmdGpu gpu = visible_amd_gpus({}, sysfs()).at(0);
  EXPECT_EQ(gpu.description(), "gfx1101");
  EXPECT_EQ(gpu.uuid, "");
}

TEST_F(AmdGpusTest, TheyAreInTheOrderOfTheirNodes) {
  test::make_amd_machine(sysfs(), 12);
  const std::vector<AmdGpu> gpus = visible_amd_gpus({}, sysfs());
  ASSERT_EQ(gpus.size(), 12u);
  EXPECT_EQ(gpus[1].numa_node, 1);
  EXPECT_EQ(gpus[10].numa_node, 10);
}

TEST_F(AmdGpusTest, AGpuOfAnotherControlGroupIsNotThere) {
  test::make_amd_machine(sysfs(), 3);
  std::filesystem::remove(node(2) / "properties");  // reading it fails
  EXPECT_THAT(seen({}), ElementsAre("1", "3"));
}

TEST_F(AmdGpusTest, NoDriver) {
  EXPECT_THAT(seen({}), IsEmpty());
  EXPECT_THAT(seen({{"ROCR_VISIBLE_DEVICES", "broken"}}), IsEmpty()) << "nobody would read it";
}

TEST_F(AmdGpusTest, VariablesSelectAsInRocm) {
  test::make_amd_machine(sysfs(), 4);
  const auto rocr = [&](const char* value) { return seen({{"ROCR_VISIBLE_DEVICES", value}}); };
  EXPECT_THAT(rocr("2, 0"), ElementsAre("3", "1"));
  EXPECT_THAT(rocr("GPU-8000000000000004,GPU-x"), ElementsAre("4")) << "an unknown one ends the list";
  EXPECT_THAT(rocr("GPU-8"), IsEmpty()) << "several begin with it";
  EXPECT_THAT(rocr("1,9,2"), ElementsAre("2"));
  EXPECT_THAT(rocr("1,GPU-8000000000000002,2"), ElementsAre("2")) << "the same again";
  EXPECT_THAT(rocr(""), IsEmpty());
  EXPECT_THAT(rocr("-1"), IsEmpty());
  EXPECT_THAT(seen({{"HIP_VISIBLE_DEVICES", "3,1"}}), ElementsAre("4", "2"));
  EXPECT_THAT(seen({{"HIP_VISIBLE_DEVICES", "-1"}}), IsEmpty());
  EXPECT_THAT(seen({{"CUDA_VISIBLE_DEVICES", "3"}}), ElementsAre("4"));
  EXPECT_THAT(seen({{"CUDA_VISIBLE_DEVICES", "3"}, {"HIP_VISIBLE_DEVICES", "0"}}), ElementsAre("1"));
  EXPECT_THAT(seen({{"ROCR_VISIBLE_DEVICES", "2,3"}, {"HIP_VISIBLE_DEVICES", "1"}}), ElementsAre("4"))
      << "HIP counts in what is left";
  EXPECT_THAT(seen({{"ROCR_VISIBLE_DEVICES", "2,3"}, {"HIP_VISIBLE_DEVICES", "2"}}), IsEmpty());
  EXPECT_THAT(seen({{"ROCR_VISIBLE_DEVICES", "2,3"}, {"GPU_DEVICE_ORDINAL", "2,3"}}), ElementsAre("3", "4"))
      << "OpenCL's";
}

TEST_F(AmdGpusTest, BrokenVariablesAreNamed) {
  test::make_amd_machine(sysfs(), 4);
  EXPECT_THAT(
      [&] {
        seen({{"ROCR_VISIBLE_DEVICES", "0,one"}});
      },
      ThrowsMessage<ConfigError>(StrEq("[cluster] ROCR_VISIBLE_DEVICES holds 'one', which is neither an "
                                       "index nor a UUID: ROCR_VISIBLE_DEVICES='0,one'")));
  EXPECT_THAT(
      [&] {
        seen({{"HIP_VISIBLE_DEVICES", "1,1"}});
      },
      ThrowsMessage<ConfigError>(
          StrEq("[cluster] HIP_VISIBLE_DEVICES names device 1 twice: HIP_VISIBLE_DEVICES='1,1'")));
  EXPECT_THAT(
      [&] {
        seen({{"HIP_VISIBLE_DEVICES", "0, 1"}});
      },
      ThrowsMessage<ConfigError>(HasSubstr("HIP_VISIBLE_DEVICES holds ' 1'")))
      << "HIP drops it";
}

TEST_F(AmdGpusTest, TheyCountWhereNvidiaHasNone) {
  test::make_amd_machine(sysfs(), 4);
  const std::string driver = folder_.path() / "driver";
  EXPECT_EQ(count_visible_gpus({}, driver, sysfs()), 4);
  EXPECT_EQ(count_visible_gpus({{"ROCR_VISIBLE_DEVICES", "0,1"}}, driver, sysfs()), 2);
  EXPECT_THAT(gpu_numa_nodes({{"ROCR_VISIBLE_DEVICES", "3,1"}}, sysfs(), driver), ElementsAre(3, 1));
  EXPECT_THAT(
      explain_amd_gpus({{"ROCR_VISIBLE_DEVICES", "0,1"}}, sysfs(), driver),
      StrEq("2 AMD GPUs are visible (AMD Instinct MI250X, gfx90a), but this build has no ROCm (its LibTorch "
            "and its GPU library are for CUDA)"));
  EXPECT_THAT(explain_amd_gpus({{"ROCR_VISIBLE_DEVICES", "0"}}, sysfs(), driver),
              HasSubstr("an AMD GPU is visible (AMD Instinct MI250X, gfx90a), but"));
  EXPECT_EQ(explain_amd_gpus({{"ROCR_VISIBLE_DEVICES", "-1"}}, sysfs(), driver), "");
  std::filesystem::create_directories(driver + "/0000:01:00.0");
  EXPECT_EQ(count_visible_gpus({}, driver, sysfs()), 1);
  EXPECT_EQ(explain_amd_gpus({}, sysfs(), driver), "");
}

TEST(ListedGpusTest, TheShortestListCounts) {
  EXPECT_EQ(count_listed_gpus({}), std::nullopt);
  EXPECT_EQ(count_listed_gpus({{"CUDA_VISIBLE_DEVICES", "0,1"}}), 2);
  EXPECT_EQ(count_listed_gpus({{"ROCR_VISIBLE_DEVICES", "0,1,2"}}), 3);
  EXPECT_EQ(count_listed_gpus({{"ROCR_VISIBLE_DEVICES", "4, 5"}, {"HIP_VISIBLE_DEVICES", "1"}}), 1);
}

}  // namespace
}  // namespace lockstep::cluster
