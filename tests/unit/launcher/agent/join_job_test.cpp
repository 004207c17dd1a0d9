#include "launcher/agent/join_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <future>

#include "base/process.h"
#include "launcher/rendezvous/remote_membership.h"
#include "unit/launcher/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it

base::ChildProcess endless_worker(Keeper& keeper) {
  base::ProcessOptions options;
  options.program = "/bin/sleep";
  options.arguments = {"sleep", "1000"};
  options.before_exec = [&](pid_t pid) { keeper.guard(pid); };
  return base::ChildProcess::start(options);
}

std::unique_ptr<MembershipThread> join_by_thread(base::EventLoop& loop, MembershipListener& listener,
                                                 Keeper& keeper, const RendezvousOptions& options) {
  return std::make_unique<MembershipThread>(
      loop, listener, keeper, [&](base::EventLoop& own_loop, MembershipListener& own_listener) {
        return join_remote(own_loop, node("b", 1), options, own_listener);
      });
}

TEST(MembershipThreadTest, HeartbeatsGoOnWhileTheLaunchersLoopStandsStill) {
  Keeper keeper;
  Cluster cluster(with_short_lease(quick(2, 2, 1)));
  Launcher& other = cluster.add("a", 0);
  base::EventLoop blocked_loop;
  Launcher blocked;
  blocked.membership = join_by_thread(blocked_loop, blocked, keeper, cluster.options);
  ASSERT_TRUE(cluster.all_run(0));
  keeper.begin("MARK=membership_thread_test");
  const base::ChildProcess worker = endless_worker(keeper);
  // Three times the heartbeat timeout.
  const auto end = base::EventLoop::Clock::now() + 3 * cluster.options.heartbeat_timeout;
  ASSERT_TRUE(cluster.run_until([&] { return base::EventLoop::Clock::now() > end; }));
  EXPECT_EQ(other.running, 0);
  EXPECT_FALSE(other.outcome);
  EXPECT_FALSE(keeper.lapse());
  EXPECT_EQ(::kill(worker.pid(), 0), 0);
  ASSERT_TRUE(run_until(blocked_loop, [&] { return blocked.running == 0; }));
}

TEST(MembershipThreadTest, TheEndOfTheJobKillsWorkersWithoutTheLaunchersLoop) {
  Keeper keeper;
  std::optional<Cluster> cluster(with_short_lease(quick(1, 2, 1)));
  base::EventLoop blocked_loop;
  Launcher blocked;
  blocked.membership = join_by_thread(blocked_loop, blocked, keeper, cluster->options);
  ASSERT_TRUE(cluster->run_until([&] {
    blocked_loop.run_once(milliseconds(0));
    return blocked.running == 0;
  }));
  keeper.begin("MARK=membership_thread_test");
  base::ChildProcess worker = endless_worker(keeper);
  cluster.reset();
  const auto end = base::EventLoop::Clock::now() + kPatience;
  while (!worker.poll_exit() && base::EventLoop::Clock::now() < end) {
  }
  ASSERT_TRUE(worker.ended());
  EXPECT_EQ(worker.exit_state().status(), 128 + SIGKILL);
  // Also workers that its loop starts before it gets finish().
  keeper.begin("MARK=membership_thread_test");
  base::ChildProcess late = endless_worker(keeper);
  while (!late.poll_exit() && base::EventLoop::Clock::now() < end) {
  }
  EXPECT_TRUE(late.ended());
  ASSERT_TRUE(run_until(blocked_loop, [&] { return blocked.outcome.has_value(); }));
  EXPECT_EQ(blocked.outcome->kind, JobOutcome::Kind::kNodeLost);
}

TEST(MembershipThreadTest, AStartThatTheLauncherHasNotComeToIsNotDoneAfterTheEnd) {
  Keeper keeper;
  std::optional<Cluster> cluster(with_short_lease(quick(2, 2, 1)));
  cluster->add("a", 0);
  base::EventLoop blocked_loop;
  Launcher blocked;
  blocked.membership = join_by_thread(blocked_loop, blocked, keeper, cluster->options);
  ASSERT_TRUE(cluster->all_run(0));
  keeper.begin("MARK=membership_thread_test");
  base::ChildProcess worker = endless_worker(keeper);
  cluster.reset();
  // The keeper kills what it guards when the job has ended.
  const auto end = base::EventLoop::Clock::now() + kPatience;
  while (!worker.poll_exit() && base::EventLoop::Clock::now() < end) {
  }
  ASSERT_TRUE(worker.ended());
  ASSERT_TRUE(run_until(blocked_loop, [&] { return blocked.outcome.has_value(); }));
  EXPECT_TRUE(blocked.map.nodes.empty()) << "workers were started";
}

TEST(MembershipThreadTest, WhatJoiningThrowsIsThrown) {
  Keeper keeper;
  base::EventLoop loop;
  Launcher launcher;
  EXPECT_THROW(MembershipThread(loop, launcher, keeper,
                                [](base::EventLoop&, MembershipListener&) -> std::unique_ptr<Membership> {
                                  throw ConfigError("test", "no");
                                }),
               ConfigError);
}

}  // namespace
}  // namespace lockstep::launcher
