#include "launch/rendezvous/clock_offset.h"

#include <gtest/gtest.h>

#include "unit/launch/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;

TEST(ClockOffsetTest, IsHalfTheRoundTripEarlierThanTheAnswerCame) {
  ClockOffset offset;
  EXPECT_EQ(offset.us(), 0);
  offset.add(milliseconds(10), 1'000'000, 6'000'000);
  EXPECT_EQ(offset.us(), 5'005'000);
}

TEST(ClockOffsetTest, TheQuickestAnswerCountsUntilItIsOld) {
  ClockOffset offset;
  offset.add(milliseconds(800), 0, 3'000'000);
  offset.add(milliseconds(2), 0, 2'000'000);
  offset.add(milliseconds(900), 0, 9'000'000);
  EXPECT_EQ(offset.us(), 2'001'000);
  for (int i = 0; i < 32; ++i) offset.add(milliseconds(4), 0, 1'000'000);
  EXPECT_EQ(offset.us(), 1'002'000) << "a clock was set";
}

// A member whose machine is an hour behind: it tells its failure in the coordinator's time.
TEST(ClockOffsetTest, FailuresAreToldInTheCoordinatorsTime) {
  using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it
  constexpr int64_t kHourUs = 3'600'000'000;
  Single single;
  ByHand ahead;
  single.join(quick(1, 1), ahead.socket.port);
  std::optional<JobFailure> failure;
  ahead.accept(single.loop, [&](Channel& channel, const wire::Message& message) {
    if (std::holds_alternative<wire::Join>(message)) {
      channel.send(wire::Joined{milliseconds(50), std::chrono::seconds(20), 0});
    } else if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
      channel.send(wire::Heartbeat{beat->sequence, beat->time_us + kHourUs});
      if (beat->sequence != 3) return;
      Generation map;
      map.master_addr = "a";
      map.master_port = 1;
      map.secret = base::make_token();
      map.nodes = {{0, "a", "127.0.0.1", 1, 1}};
      channel.send(wire::Map{map});
      channel.send(wire::Begin{0, 0});
    } else if (const auto* failed = std::get_if<wire::WorkerFailed>(&message)) {
      failure = failed->failure;
    }
  });
  ASSERT_TRUE(single.run_until([&] { return single.launcher.running.has_value(); }));
  single.launcher.fail(1);  // at 1 us past the epoch by its own clock
  ASSERT_TRUE(single.run_until([&] { return failure.has_value(); }));
  EXPECT_NEAR(static_cast<double>(failure->time_us), static_cast<double>(kHourUs), 60e6)
      << "off by half a round trip at most";
}

}  // namespace
}  // namespace lockstep::launcher
