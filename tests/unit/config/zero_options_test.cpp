#include "config/zero_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::config {
namespace {

// The sentence with options spelled "<option>".
std::string violation_of(const ZeroOptions& options) {
  const auto found =
      find_violation(options, [](std::string_view option) { return "<" + std::string(option) + ">"; });
  return found ? found->sentence : "";
}

TEST(ZeroOptionsTest, NamesOfDevicesAreReadAsTheyArePrinted) {
  for (const auto device : {OffloadDevice::kNone, OffloadDevice::kCpu, OffloadDevice::kNvme}) {
    EXPECT_EQ(offload_device_named(name_of(device)), device);
  }
  EXPECT_EQ(offload_device_named("gpu"), std::nullopt);
}

TEST(ZeroOptionsTest, ConsistentOptionsBreakNoRule) {
  EXPECT_EQ(violation_of({}), "");
  EXPECT_EQ(violation_of({.stage = 3,
                          .offload_optimizer = {.device = OffloadDevice::kNvme, .nvme_path = "/disk"},
                          .offload_param = {.device = OffloadDevice::kCpu}}),
            "");
}

TEST(ZeroOptionsTest, SentencesSpellOptionsAsTheCallerDoes) {
  EXPECT_EQ(violation_of({.stage = 4}), "<stage> must be 0, 1, 2 or 3: 4");
  EXPECT_EQ(violation_of({.offload_optimizer = {.device = OffloadDevice::kCpu}}),
            "<offload_optimizer.device> cpu needs <stage> 1, 2 or 3, and it is 0: set <stage>, or "
            "<offload_optimizer.device> to none");
  EXPECT_EQ(
      violation_of({.stage = 3, .offload_optimizer = {.device = OffloadDevice::kNvme}}),
      "<offload_optimizer.device> nvme needs <offload_optimizer.nvme_path>, a folder on that disk: set it");
}

TEST(ZeroOptionsTest, RulesOfThisLibraryAreMarked) {
  const auto spell = [](std::string_view option) { return std::string(option); };
  const ZeroOptions without_optimizer{.stage = 3, .offload_param = {.device = OffloadDevice::kCpu}};
  EXPECT_TRUE(find_violation(without_optimizer, spell)->is_ours);
  const ZeroOptions without_stage{.offload_optimizer = {.device = OffloadDevice::kCpu}};
  EXPECT_FALSE(find_violation(without_stage, spell)->is_ours);
}

}  // namespace
}  // namespace lockstep::config
