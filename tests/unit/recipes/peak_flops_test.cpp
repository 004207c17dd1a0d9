#include "recipes/peak_flops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string_view>

namespace lockstep::recipes {
namespace {

TEST(PeakFlops, AreThoseOfTheWordsOfTheName) {
  struct Device {
    std::string_view name;
    double tflops;
  };
  for (const Device& device : {Device{"NVIDIA H200", 989},
                               {"NVIDIA H200 NVL", 835},
                               {"NVIDIA H100 80GB HBM3", 989},
                               {"NVIDIA H100 PCIe", 756},
                               {"NVIDIA H100 NVL", 835},
                               {"NVIDIA GH200 480GB", 989},
                               {"NVIDIA B200", 2250},
                               {"NVIDIA GB200", 2500},
                               {"NVIDIA A100-SXM4-80GB", 312},
                               {"NVIDIA A100-PCIE-40GB", 312},
                               {"NVIDIA A40", 150},
                               {"NVIDIA L4", 121},
                               {"NVIDIA L40", 181},
                               {"NVIDIA L40S", 362},
                               {"Tesla V100-SXM2-16GB", 125},
                               {"Tesla V100-PCIE-16GB", 112}}) {
    EXPECT_THAT(peak_flops_of(device.name), testing::Optional(device.tflops * 1e12)) << device.name;
  }
}

TEST(PeakFlops, AreUnknownOfOtherDevicesAndOfParts) {
  for (const char* const name : {"NVIDIA RTX A4000", "NVIDIA A4000", "NVIDIA L400", "NVIDIA GeForce RTX 4090",
                                 "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "cpu", ""}) {
    EXPECT_EQ(peak_flops_of(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace lockstep::recipes
