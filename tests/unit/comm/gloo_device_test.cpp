#include "comm/gloo_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::comm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

const base::Environment kEmpty;
const base::Environment kLoopbackByName{{"GLOO_SOCKET_IFNAME", "lo"}};

TEST(GlooDeviceTest, TheRequestComesFirst) {
  EXPECT_THAT(choose_gloo_devices("lo", kLoopbackByName, ""), ElementsAre(GlooDevice{"lo", ""}));
  EXPECT_THAT(choose_gloo_devices("127.0.0.2", kLoopbackByName, ""),
              ElementsAre(GlooDevice{"", "127.0.0.2"}));
}

TEST(GlooDeviceTest, ThenTheVariable) {
  EXPECT_THAT(choose_gloo_devices("", kLoopbackByName, "127.0.0.1"), ElementsAre(GlooDevice{"lo", ""}));
  EXPECT_THAT(choose_gloo_devices("", {{"GLOO_SOCKET_IFNAME", "lo,lo"}}, ""),
              ElementsAre(GlooDevice{"lo", ""}, GlooDevice{"lo", ""}));
}

TEST(GlooDeviceTest, ThenTheWayToTheRendezvousThenLoopback) {
  EXPECT_THAT(choose_gloo_devices("", kEmpty, "127.0.0.1"), ElementsAre(GlooDevice{"", "127.0.0.1"}));
  EXPECT_THAT(choose_gloo_devices("", {{"GLOO_SOCKET_IFNAME", ""}}, ""),
              ElementsAre(GlooDevice{"", "127.0.0.1"}));
  EXPECT_THAT(choose_gloo_devices("", kEmpty, "name.invalid"), ElementsAre(GlooDevice{"", "127.0.0.1"}));
}

TEST(GlooDeviceTest, WrongNamesAreErrorsThatListTheRightOnes) {
  EXPECT_THAT([] { choose_gloo_devices("nosuch0", kEmpty, ""); },
              ThrowsMessage<ConfigError>(testing::AllOf(HasSubstr("'nosuch0'"), HasSubstr("lo"))));
  EXPECT_THAT(
      [] {
        choose_gloo_devices("", {{"GLOO_SOCKET_IFNAME", "lo,nosuch0"}}, "");
      },
      ThrowsMessage<ConfigError>(testing::AllOf(HasSubstr("GLOO_SOCKET_IFNAME"), HasSubstr("'nosuch0'"))));
}

TEST(GlooDeviceTest, NumericAddresses) {
  EXPECT_EQ(local_address_towards("127.0.0.1"), "127.0.0.1");
  EXPECT_EQ(local_address_towards("name.invalid"), std::nullopt);
  EXPECT_EQ(numeric_local_address("lo", ""), "127.0.0.1");
  EXPECT_EQ(numeric_local_address("", "127.0.0.1"), "127.0.0.1");
}

}  // namespace
}  // namespace lockstep::comm
