#include "cluster/devices.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>

namespace lockstep::cluster {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::StrEq;
using testing::ThrowsMessage;

RankMap local(int local_rank, int local_world_size) {
  RankMap map;
  map.local_rank = local_rank;
  map.local_world_size = local_world_size;
  return map;
}

TEST(VisibleDevicesTest, UnsetShowsEveryDevice) {
  const VisibleDevices visible = parse_visible_devices(std::nullopt);
  EXPECT_FALSE(visible.restricted);
  EXPECT_THAT(visible.devices, IsEmpty());
}

TEST(VisibleDevicesTest, ReadsIndicesAndUuidsInOrder) {
  EXPECT_THAT(parse_visible_devices("2,0").devices, ElementsAre("2", "0"));
  EXPECT_THAT(parse_visible_devices("GPU-8932f937,GPU-1").devices, ElementsAre("GPU-8932f937", "GPU-1"));
  EXPECT_THAT(parse_visible_devices("MIG-a,11").devices, ElementsAre("MIG-a", "11"));
}

TEST(VisibleDevicesTest, HidesDevicesAsCudaDoes) {
  for (const char* value : {"", "-1", "NoDevFiles", "-1,0"}) {
    EXPECT_TRUE(parse_visible_devices(value).restricted) << value;
    EXPECT_THAT(parse_visible_devices(value).devices, IsEmpty()) << value;
  }
  EXPECT_THAT(parse_visible_devices("1,-1,0").devices, ElementsAre("1"));
}

TEST(VisibleDevicesTest, RefusesWhatCudaWouldHideSilently) {
  EXPECT_THAT([] { parse_visible_devices("0,one"); },
              ThrowsMessage<ConfigError>(
                  StrEq("[cluster] CUDA_VISIBLE_DEVICES holds 'one', which is neither an index "
                        "nor a UUID: CUDA_VISIBLE_DEVICES='0,one'")));
  EXPECT_THAT([] { parse_visible_devices("0,"); },
              ThrowsMessage<ConfigError>(
                  StrEq("[cluster] CUDA_VISIBLE_DEVICES holds '', which is neither an index nor "
                        "a UUID: CUDA_VISIBLE_DEVICES='0,'")));
  EXPECT_THAT([] { parse_visible_devices("1,01"); },
              ThrowsMessage<ConfigError>(
                  StrEq("[cluster] CUDA_VISIBLE_DEVICES names device 1 twice: CUDA_VISIBLE_DEVICES='1,01'")));
}

TEST(VisibleGpusTest, CountsWhatTheDriverHasAndTheVariableShows) {
  const std::string driver = testing::TempDir() + "lockstep_visible_gpus_test";
  for (const char* gpu : {"0000:01:00.0", "0000:02:00.0", "0000:03:00.0"}) {
    std::filesystem::create_directories(driver + "/" + gpu);
  }
  EXPECT_EQ(count_visible_gpus({}, driver), 3);
  EXPECT_EQ(count_visible_gpus({{"CUDA_VISIBLE_DEVICES", "0,2"}}, driver), 2);
  EXPECT_EQ(count_visible_gpus({{"CUDA_VISIBLE_DEVICES", ""}}, driver), 0);
  EXPECT_EQ(count_visible_gpus({{"CUDA_VISIBLE_DEVICES", "0,1"}}, "/nonexistent", "/nonexistent"), 0);
  std::filesystem::remove_all(driver);
}

TEST(ChooseDeviceTest, TakesTheLocalRank) {
  EXPECT_EQ(choose_device(local(0, 1), 8, {}), 0);
  EXPECT_EQ(choose_device(local(3, 4), 4, {}), 3);
  EXPECT_EQ(choose_device(local(1, 2), 4, {}), 1);
}

TEST(ChooseDeviceTest, TakesTheOnlyDeviceOfATask) { EXPECT_EQ(choose_device(local(3, 4), 1, {}), 0); }

TEST(ChooseDeviceTest, RefusesTwoRanksOnOneDevice) {
  EXPECT_THAT(
      [] {
        choose_device(local(0, 3), 2, {{"CUDA_VISIBLE_DEVICES", "0,1"}});
      },
      ThrowsMessage<ConfigError>(
          StrEq("[cluster] two ranks would share one device: CUDA_VISIBLE_DEVICES='0,1', "
                "LOCAL_RANK=0, LOCAL_WORLD_SIZE=3, 2 visible")));
}

TEST(ChooseDeviceTest, RefusesAMachineWithoutDevices) {
  EXPECT_THAT([] { choose_device(local(0, 1), 0, {}); },
              ThrowsMessage<ConfigError>(
                  StrEq("[cluster] no GPU is visible: CUDA_VISIBLE_DEVICES unset, LOCAL_RANK=0, "
                        "LOCAL_WORLD_SIZE=1, 0 visible")));
}

TEST(DistinctDevicesTest, TakesOneDeviceARank) {
  EXPECT_NO_THROW(check_distinct_devices({{0, "a", "GPU-1"}, {1, "a", "GPU-2"}, {2, "b", "GPU-1"}}));
  EXPECT_NO_THROW(check_distinct_devices({{0, "a", ""}, {1, "a", ""}}));
}

TEST(DistinctDevicesTest, NamesBothRanks) {
  EXPECT_THAT(
      [] {
        check_distinct_devices({{0, "a", "GPU-1"}, {1, "b", "GPU-9"}, {2, "a", "GPU-1"}});
      },
      ThrowsMessage<ConfigError>(StrEq("[cluster] two ranks share one device, start one rank a GPU or set "
                                       "LOCAL_RANK: ranks 0 and 2 on a, device GPU-1")));
}

// Princeton's page asserts it, too.
TEST(ChooseDeviceTest, GpusPerNodeMustBeTheVisibleOnes) {
  EXPECT_EQ(choose_device(local(1, 2), 2, {{"GPUS_PER_NODE", "2"}}), 1);
  EXPECT_THAT(
      [] {
        choose_device(local(1, 2), 2, {{"GPUS_PER_NODE", "4"}});
      },
      ThrowsMessage<ConfigError>(testing::StartsWith(
          "[cluster] GPUS_PER_NODE is 4, and 2 GPUs are visible to this rank: count them with "
          "SLURM_GPUS_ON_NODE, or unset GPUS_PER_NODE: ")));
  EXPECT_THAT(
      [] {
        choose_device(local(0, 1), 2, {{"GPUS_PER_NODE", "two"}});
      },
      ThrowsMessage<ConfigError>(testing::HasSubstr("GPUS_PER_NODE")));
}

// srun --gpus-per-task=1 and lockstep run --virtual-local-rank show each rank its own of the node's.
TEST(ChooseDeviceTest, GpusPerNodeDoesNotCountWhereOneIsVisible) {
  EXPECT_EQ(choose_device(local(3, 4), 1, {{"GPUS_PER_NODE", "4"}}), 0);
}

}  // namespace
}  // namespace lockstep::cluster
