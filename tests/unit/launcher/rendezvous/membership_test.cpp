// Jobs from the first join to the end.

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

TEST(MembershipTest, AllGetTheSameMapAndSucceedTogether) {
  Cluster cluster(quick(3, 3));
  cluster.add("a", 2);
  cluster.add("b", 0);
  cluster.add("c", 1);
  ASSERT_TRUE(cluster.all_run(0));
  EXPECT_EQ(cluster.launchers[0]->map.node_rank, 2);
  EXPECT_EQ(cluster.launchers[1]->map.node_rank, 0);
  for (const auto& launcher : cluster.launchers) {
    EXPECT_EQ(launcher->map.world_size(), 3);
    EXPECT_EQ(launcher->map.nodes[0].host, "b");
    EXPECT_EQ(launcher->map.nodes[2].address, "127.0.0.1");
    EXPECT_EQ(launcher->map.nodes[2].pid, 100);
    EXPECT_EQ(launcher->map.master_addr, "127.0.0.1");
    EXPECT_EQ(launcher->map.master_port, 20000);
  }
  EXPECT_EQ(cluster.launchers[1]->ports_reserved, 1);
  for (const auto& launcher : cluster.launchers) launcher->membership->succeeded(0);
  ASSERT_TRUE(cluster.all_finish());
  for (const auto& launcher : cluster.launchers) EXPECT_EQ(launcher->outcome->kind, Kind::kSuccess);
}

TEST(MembershipTest, AFailureRestartsAllThenEndsAll) {
  Cluster cluster(quick(2, 2, 1));
  cluster.add("a", 0);
  cluster.add("b", 1);
  ASSERT_TRUE(cluster.all_run(0));
  cluster.launchers[1]->fail(9);
  ASSERT_TRUE(cluster.all_run(1));
  EXPECT_THAT(cluster.launchers[0]->stop_reason, HasSubstr("rank 0 on b ended with exit code 9"));
  EXPECT_EQ(cluster.launchers[0]->map.restart_count, 1);
  EXPECT_EQ(cluster.launchers[0]->map.master_port, 20001);
  cluster.launchers[0]->fail(11);
  ASSERT_TRUE(cluster.all_finish());
  for (const auto& launcher : cluster.launchers) {
    EXPECT_EQ(launcher->outcome->status(), 11);
    ASSERT_TRUE(launcher->outcome->failure);
    EXPECT_EQ(launcher->outcome->failure->host, "a");
    ASSERT_EQ(launcher->outcome->failure->last_lines.size(), 2u);
    EXPECT_EQ(launcher->outcome->failure->last_lines[0], "a line");
  }
}

TEST(MembershipTest, NoPortForTheStoreEndsTheJob) {
  Cluster cluster(quick(1, 1));
  cluster.add("a").port_error = "all are taken";
  ASSERT_TRUE(cluster.all_finish());
  EXPECT_EQ(cluster.launchers[0]->outcome->kind, Kind::kRendezvousFailed);
  EXPECT_THAT(cluster.launchers[0]->outcome->reason, HasSubstr("all are taken"));
}

TEST(MembershipTest, LateLaunchersJoinByARestart) {
  Cluster cluster(quick(1, 2));
  cluster.add("a");
  ASSERT_TRUE(cluster.all_run(0));
  cluster.add("b");
  ASSERT_TRUE(cluster.all_run(1));
  EXPECT_EQ(cluster.launchers[1]->map.nodes.size(), 2u);
  EXPECT_EQ(cluster.launchers[1]->map.restart_count, 0);
  cluster.launchers[1]->membership->leave(SIGTERM);
  ASSERT_TRUE(cluster.all_run(2));
  EXPECT_EQ(cluster.launchers[1]->outcome->status(), 128 + SIGTERM);
  EXPECT_EQ(cluster.launchers[0]->map.nodes.size(), 1u);
}

TEST(MembershipTest, LeavingBeforeJoiningNeedsNobody) {
  Single single;
  single.join(quick(1, 1), closed_port());
  single.launcher.membership->leave(SIGINT);
  EXPECT_FALSE(single.launcher.outcome) << "called from inside leave()";
  ASSERT_TRUE(single.finishes());
  EXPECT_EQ(single.launcher.outcome->status(), 128 + SIGINT);
}

TEST(MembershipTest, TheHostIsNodeZeroAndTheLastToKnow) {
  base::EventLoop loop;
  Launcher host, other;
  RendezvousOptions options = quick(2, 2);
  options.host = "localhost";
  HostedJob job = host_job(loop, node("a"), options, "127.0.0.1", host);
  host.membership = std::move(job.membership);
  options.port = job.port;
  other.membership = join_remote(loop, node("b"), options, other);
  ASSERT_TRUE(run_until(loop, [&] { return host.running == 0 && other.running == 0; }));
  EXPECT_EQ(host.map.node_rank, 0);
  EXPECT_EQ(host.map.master_addr, "localhost");  // as the others reach it
  host.membership->succeeded(0);
  other.membership->succeeded(0);
  ASSERT_TRUE(run_until(loop, [&] {
    if (host.outcome) EXPECT_TRUE(other.outcome);
    return host.outcome.has_value();
  }));
  EXPECT_EQ(other.outcome->kind, Kind::kSuccess);
}

TEST(MembershipTest, AnOccupiedPortIsNamed) {
  base::EventLoop loop;
  const base::ListenSocket taken = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = taken.port;
  Launcher launcher;
  try {
    host_job(loop, node("a"), options, "127.0.0.1", launcher);
    FAIL() << "two listeners on one port";
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("port " + std::to_string(taken.port)));
    EXPECT_THAT(error.what(), HasSubstr("in use"));
  }
}

TEST(MembershipTest, IPv6) {
  base::EventLoop loop;
  Launcher host, other;
  RendezvousOptions options = quick(2, 2);
  options.host = "::1";
  HostedJob job = host_job(loop, node("a"), options, "::", host);
  host.membership = std::move(job.membership);
  options.port = job.port;
  options.host = "127.0.0.1";  // "::" listens for both
  other.membership = join_remote(loop, node("b"), options, other);
  ASSERT_TRUE(run_until(loop, [&] { return host.running == 0 && other.running == 0; }));
  EXPECT_EQ(other.map.nodes[1].address, "127.0.0.1");
}

TEST(LocalMembershipTest, OneNodeNeedsNoSockets) {
  base::EventLoop loop;
  Launcher launcher;
  launcher.membership = join_alone(loop, node("a"), quick(1, 1, 1), launcher);
  EXPECT_EQ(launcher.ports_reserved, 0) << "called from inside the constructor";
  ASSERT_TRUE(run_until(loop, [&] { return launcher.running == 0; }));
  EXPECT_EQ(launcher.map.world_size(), 1);
  launcher.fail(3);
  EXPECT_EQ(launcher.running, 0) << "called from inside worker_failed()";
  ASSERT_TRUE(run_until(loop, [&] { return launcher.running == 1; }));
  EXPECT_EQ(launcher.map.restart_count, 1);
  launcher.fail(4);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->status(), 4);
}

TEST(LocalMembershipTest, OneNodeOfAKnownMapDecidesForItself) {
  Single single;
  Generation map;
  map.nodes = {node("a", 0), node("b", 1)};
  map.nodes[0].local_world_size = 3;
  map.node_rank = 1;
  map.master_addr = "a";
  map.master_port = 4000;
  single.launcher.membership = join_known(single.loop, map, quick(1, 1), single.launcher);
  ASSERT_TRUE(single.run_until([&] { return single.launcher.running == 0; }));
  EXPECT_EQ(single.launcher.ports_reserved, 0) << "it is known";
  EXPECT_EQ(single.launcher.map.first_rank(), 3);
  EXPECT_EQ(single.launcher.map.world_size(), 4);
  EXPECT_EQ(single.launcher.map.master_addr, "a");
  EXPECT_EQ(single.launcher.map.master_port, 4000);
  single.launcher.fail(5);
  ASSERT_TRUE(single.finishes());
  EXPECT_EQ(single.launcher.outcome->status(), 5);
  EXPECT_EQ(single.launcher.outcome->failure->node_rank, 1);
  EXPECT_EQ(single.launcher.outcome->failure->host, "b");
}

TEST(LocalMembershipTest, Succeeds) {
  base::EventLoop loop;
  Launcher launcher;
  launcher.membership = join_alone(loop, node("a"), quick(1, 1), launcher);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.running == 0; }));
  launcher.membership->succeeded(0);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->kind, Kind::kSuccess);
}

TEST(LocalMembershipTest, ASignalStopsIt) {
  base::EventLoop loop;
  Launcher launcher;
  launcher.membership = join_alone(loop, node("a"), quick(1, 1), launcher);
  launcher.membership->leave(SIGTERM);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->status(), 128 + SIGTERM);
}

}  // namespace
}  // namespace lockstep::launcher
