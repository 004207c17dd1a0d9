// Contact that is lost, late or never made.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <csignal>

#include "unit/launcher/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it
using ::testing::HasSubstr;
using Kind = JobOutcome::Kind;

TEST(ContactTest, ALauncherThatDiesIsNoticedAndReplacedByNobody) {
  Cluster cluster(with_short_lease(quick(1, 2, 1)));
  cluster.add("a", 0);
  cluster.add("b", 1);
  ASSERT_TRUE(cluster.all_run(0));
  cluster.launchers[1]->membership.reset();  // what the kernel does to a killed one
  cluster.launchers[1]->outcome = JobOutcome{};
  ASSERT_TRUE(cluster.all_run(1));
  EXPECT_EQ(cluster.launchers[0]->map.nodes.size(), 1u);
  EXPECT_THAT(cluster.launchers[0]->stop_reason, HasSubstr("node 1 (b) is lost"));
}

TEST(ContactTest, ASilentLauncherIsLostAndFindsOutItself) {
  Cluster cluster(with_short_lease(quick(1, 2, 1)));
  Launcher& good = cluster.add("a", 0);
  // On a loop of its own, which stands still like a process that got SIGSTOP.
  base::EventLoop stopped_loop;
  Launcher stopped;
  ASSERT_TRUE(cluster.runs_with(stopped, stopped_loop));
  ASSERT_TRUE(cluster.run_until([&] { return good.running == 1; }));
  EXPECT_THAT(good.stop_reason, HasSubstr("no sign of life"));
  EXPECT_EQ(stopped.running, 0);
  ASSERT_TRUE(run_until(stopped_loop, [&] { return stopped.outcome.has_value(); }));
  EXPECT_EQ(stopped.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(stopped.outcome->reason, ::testing::ContainsRegex("this launcher did not run for [0-9.]+ s"));
}

TEST(ContactTest, AStartThatWasReadAfterTheLeaseIsNotDone) {
  Cluster cluster(with_short_lease(quick(2, 2, 1)));
  Launcher& good = cluster.add("a", 0);
  base::EventLoop stopped_loop;
  Launcher stopped;
  ASSERT_TRUE(cluster.runs_with(stopped, stopped_loop));
  // It answers the stop and stands still; the next start waits in its socket.
  good.fail(1);
  ASSERT_TRUE(cluster.run_until([&] {
    if (stopped.running) stopped_loop.run_once(milliseconds(0));
    return good.running == 1;
  }));
  ASSERT_FALSE(stopped.running);
  ASSERT_TRUE(cluster.run_until([&] { return good.outcome.has_value(); }));
  EXPECT_EQ(good.outcome->kind, Kind::kNodeLost);
  ASSERT_TRUE(run_until(stopped_loop, [&] { return stopped.outcome || stopped.running; }));
  EXPECT_FALSE(stopped.running);
  EXPECT_EQ(stopped.map.number, 0);
}

TEST(ContactTest, ADeadCoordinatorEndsAll) {
  Cluster cluster(quick(2, 2, 5));
  cluster.add("a");
  cluster.add("b");
  ASSERT_TRUE(cluster.all_run(0));
  cluster.server.reset();
  ASSERT_TRUE(cluster.all_finish());
  for (const auto& launcher : cluster.launchers) {
    EXPECT_EQ(launcher->outcome->kind, Kind::kNodeLost);
    EXPECT_EQ(launcher->outcome->status(), kExitNodeLost);
  }
}

TEST(ContactTest, ASilentCoordinatorEndsAll) {
  // On a loop of its own, which stands still.
  base::EventLoop server_loop;
  const RendezvousOptions options = with_short_lease(quick(1, 1, 5));
  CoordinatorServer server(server_loop, base::listen_on("127.0.0.1", 0), options, /*needs_host=*/false);
  Single single;
  single.join(options, server.port());
  ASSERT_TRUE(single.run_until([&] {
    server_loop.run_once(milliseconds(0));
    return single.launcher.running.has_value();
  }));
  ASSERT_TRUE(single.finishes());
  EXPECT_EQ(single.launcher.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(single.launcher.outcome->reason, HasSubstr("no answer for 1 s"));
}

TEST(ContactTest, ALauncherMayComeBeforeTheCoordinator) {
  Single single;
  const uint16_t port = closed_port();
  single.join(quick(1, 1), port);
  for (int i = 0; i < 5; ++i) single.loop.run_once(milliseconds(10));
  EXPECT_FALSE(single.launcher.outcome);
  CoordinatorServer server(single.loop, base::listen_on("127.0.0.1", port), quick(1, 1),
                           /*needs_host=*/false);
  ASSERT_TRUE(single.run_until([&] { return single.launcher.running == 0; }));
}

TEST(ContactTest, AnUnreachableCoordinatorIsNamedWithWhatWasTried) {
  Single single;
  const uint16_t port = closed_port();
  RendezvousOptions options = quick(1, 1);
  options.join_timeout = milliseconds(100);
  single.join(options, port);
  ASSERT_TRUE(single.finishes());
  EXPECT_EQ(single.launcher.outcome->kind, Kind::kRendezvousFailed);
  EXPECT_THAT(single.launcher.outcome->reason,
              HasSubstr("127.0.0.1:" + std::to_string(port) + ": Connection refused"));
}

TEST(ContactTest, AListenerThatNeverAnswersIsNamed) {
  Single single;
  const base::ListenSocket silent = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.stranger_timeout = milliseconds(20);
  options.join_timeout = milliseconds(200);
  single.join(options, silent.port);
  ASSERT_TRUE(single.finishes());
  EXPECT_THAT(single.launcher.outcome->reason, HasSubstr("connected, but got no answer"));
}

}  // namespace
}  // namespace lockstep::launcher
