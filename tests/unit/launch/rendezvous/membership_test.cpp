// Launchers and a coordinator over real sockets, all on one event loop.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/exit_status.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <functional>

#include "launch/rendezvous/coordinator_server.h"
#include "launch/rendezvous/join.h"
#include "launch/rendezvous/remote_membership.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Kind = JobOutcome::Kind;

// Far beyond what anything here takes: reached only by a test that fails.
constexpr seconds kPatience{30};

RendezvousOptions quick(int min_nodes, int max_nodes, int max_restarts = 0) {
  RendezvousOptions options;
  options.run_id = "job-7";
  options.token = "secret";
  options.min_nodes = min_nodes;
  options.max_nodes = max_nodes;
  options.max_restarts = max_restarts;
  options.last_call_timeout = milliseconds(20);
  options.heartbeat_interval = milliseconds(50);
  options.heartbeat_timeout = milliseconds(1000);
  options.lease_margin = milliseconds(50);
  return options;
}

// Runs the loop until the condition holds. False: it never did.
bool run_until(base::EventLoop& loop, const std::function<bool()>& condition) {
  const auto end = base::EventLoop::Clock::now() + kPatience;
  while (!condition()) {
    if (base::EventLoop::Clock::now() > end) return false;
    loop.run_once(milliseconds(10));
  }
  return true;
}

NodeInfo node(const std::string& host, std::optional<int> rank = std::nullopt) {
  NodeInfo info;
  info.host = host;
  info.node_rank = rank;
  info.pid = 100;
  return info;
}

// A launcher whose workers run until it is told otherwise.
struct Launcher : MembershipListener {
  uint16_t reserve_store_port(int generation) override {
    ++ports_reserved;
    if (!port_error.empty()) throw ConfigError("test", port_error);
    return static_cast<uint16_t>(20000 + generation);
  }
  void start(const Generation& generation) override {
    EXPECT_FALSE(outcome);
    EXPECT_FALSE(running);
    running = generation.number;
    map = generation;
  }
  void stop(int generation, const std::string& reason) override {
    EXPECT_EQ(running.value_or(generation), generation);
    running.reset();
    stop_reason = reason;
    membership->stopped(generation);
  }
  void finish(const JobOutcome& how) override {
    EXPECT_FALSE(outcome) << "finished twice";
    running.reset();
    outcome = how;
    if (membership_ends_with_job) membership.reset();
  }
  void fail(int code) const {
    JobFailure failure;
    failure.generation = *running;
    failure.state.code = code;
    failure.time_us = 1;
    failure.last_lines = {"a line", "\xff\xfe not text"};
    membership->worker_failed(failure);
  }

  std::unique_ptr<Membership> membership;
  std::optional<int> running;
  Generation map;
  std::string stop_reason, port_error;
  std::optional<JobOutcome> outcome;
  int ports_reserved = 0;
  bool membership_ends_with_job = true;
};

// A coordinator and the launchers that join it.
struct Cluster {
  explicit Cluster(const RendezvousOptions& given) : options(given) {
    server.emplace(loop, base::listen_on("127.0.0.1", 0), options, /*needs_host=*/false);
    options.port = server->port();
  }
  Launcher& add(const std::string& host, std::optional<int> rank = std::nullopt) {
    return add(host, rank, options);
  }
  Launcher& add(const std::string& host, std::optional<int> rank, const RendezvousOptions& its_options) {
    launchers.push_back(std::make_unique<Launcher>());
    Launcher& launcher = *launchers.back();
    launcher.membership = join_remote(loop, node(host, rank), its_options, launcher);
    return launcher;
  }
  bool run_until(const std::function<bool()>& condition) { return launcher::run_until(loop, condition); }
  bool all_run(int generation) {
    return run_until([&] {
      for (const auto& launcher : launchers) {
        if (!launcher->outcome && launcher->running != generation) return false;
      }
      return true;
    });
  }
  bool all_finish() {
    return run_until([&] {
      for (const auto& launcher : launchers) {
        if (!launcher->outcome) return false;
      }
      return true;
    });
  }

  base::EventLoop loop;
  RendezvousOptions options;
  std::optional<CoordinatorServer> server;
  std::vector<std::unique_ptr<Launcher>> launchers;
};

// A peer that says what it likes.
struct Stranger {
  explicit Stranger(uint16_t port) : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  void say(const std::string& bytes) const {
    ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  // Whether the other side has ended the connection; reads what it said before.
  bool is_cut_off() {
    char bytes[4096];
    ssize_t count = 0;
    while ((count = ::recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
      heard.append(bytes, static_cast<size_t>(count));
    }
    return count == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }
  base::UniqueFd fd;
  std::string heard;
};

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
  EXPECT_THAT(cluster.launchers[0]->stop_reason, HasSubstr("node 1 (b) ended with exit code 9"));
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

TEST(MembershipTest, AWrongTokenIsRefusedAndNobodyElseNotices) {
  Cluster cluster(quick(2, 2));
  RendezvousOptions wrong = cluster.options;
  wrong.token = "another";
  Launcher& stranger = cluster.add("x", std::nullopt, wrong);
  ASSERT_TRUE(cluster.run_until([&] { return stranger.outcome.has_value(); }));
  EXPECT_EQ(stranger.outcome->kind, Kind::kRendezvousFailed);
  EXPECT_EQ(stranger.outcome->status(), kExitRendezvous);
  EXPECT_THAT(stranger.outcome->reason, HasSubstr("the job token is wrong"));
  cluster.add("a");
  cluster.add("b");
  ASSERT_TRUE(cluster.all_run(0));
}

TEST(MembershipTest, AnotherRunIsRefusedWithBothNames) {
  Cluster cluster(quick(1, 1));
  RendezvousOptions other = cluster.options;
  other.run_id = "job-8";
  Launcher& launcher = cluster.add("a", std::nullopt, other);
  ASSERT_TRUE(cluster.all_finish());
  EXPECT_THAT(launcher.outcome->reason,
              HasSubstr("the job here is \"job-7\", the launcher belongs to \"job-8\""));
}

TEST(MembershipTest, ATakenRankIsRefused) {
  Cluster cluster(quick(2, 2));
  cluster.add("a", 0);
  Launcher& second = cluster.add("b", 0);
  Launcher& first = *cluster.launchers[0];
  ASSERT_TRUE(cluster.run_until([&] { return second.outcome || first.outcome; }));
  const Launcher& refused = second.outcome ? second : first;
  EXPECT_THAT(refused.outcome->reason, HasSubstr("node rank 0 is taken by"));
}

TEST(MembershipTest, StrangersAreCutOffWhateverTheySay) {
  Cluster cluster(quick(2, 2));
  std::vector<std::unique_ptr<Stranger>> strangers;
  const std::string magic("LSR\x01", 4);
  const auto framed = [&](const std::string& body) {
    return magic + std::string("\0\0\0", 3) + static_cast<char>(body.size()) + body;
  };
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("LSR\x09____", 8),
        magic + std::string("\x7f\xff\xff\xff", 4),    // 2 GiB
        magic + std::string("\0\0\x10\x01", 4) + "x",  // 4 KiB + 1
        framed("not json"), framed("[1,2,3]"), framed("{}"), framed(R"({"type":"launch_missiles"})"),
        framed(R"({"type":"join","run_id":"job-7"})"), framed(R"({"type":"stopped","generation":0})"),
        framed(R"({"type":"hello","nonce":"00","proof":"00"})")}) {
    strangers.push_back(std::make_unique<Stranger>(cluster.server->port()));
    strangers.back()->say(bytes);
  }
  cluster.add("a");
  cluster.add("b");
  ASSERT_TRUE(cluster.all_run(0));
  ASSERT_TRUE(cluster.run_until([&] {
    bool all = true;
    for (const auto& stranger : strangers) all &= stranger->is_cut_off();
    return all;
  }));
  EXPECT_EQ(*cluster.launchers[0]->running, 0);
}

TEST(MembershipTest, SlowStrangersAreCutOffInTime) {
  RendezvousOptions options = quick(2, 2);
  options.stranger_timeout = milliseconds(100);
  Cluster cluster(options);
  Stranger silent(cluster.server->port()), slow(cluster.server->port());
  cluster.options.stranger_timeout = kPatience;
  cluster.add("a");
  cluster.add("b");
  const std::string frame = encode_frame(std::string(kMaxStrangerBytes, ' '));
  size_t next = 0;
  bool silent_is_out = false, slow_is_out = false;
  ASSERT_TRUE(cluster.run_until([&] {
    if (next < frame.size()) slow.say(frame.substr(next++, 1));
    silent_is_out |= silent.is_cut_off();
    slow_is_out |= slow.is_cut_off();
    return silent_is_out && slow_is_out;
  }));
  EXPECT_TRUE(cluster.all_run(0));
}

TEST(MembershipTest, ManyStrangersKeepNobodyOut) {
  RendezvousOptions options = quick(2, 2);
  options.max_strangers = 4;
  Cluster cluster(options);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 20; ++i) strangers.push_back(std::make_unique<Stranger>(cluster.server->port()));
  cluster.add("a");
  cluster.add("b");
  EXPECT_TRUE(cluster.all_run(0));
}

TEST(MembershipTest, AMemberThatBreaksTheProtocolIsLost) {
  Cluster cluster(quick(1, 2, 0));
  Launcher& good = cluster.add("a", 0);
  // A member by hand.
  const JobToken token(cluster.options.token);
  struct ByHand : Channel::Handler {
    void received(Channel& channel, const wire::Message& message) override {
      if (const auto* challenge = std::get_if<wire::Challenge>(&message)) {
        const Nonce nonce = make_nonce();
        channel.send(wire::Hello{nonce, token.prove(JobToken::Side::kMember, challenge->nonce, nonce)});
      } else if (std::holds_alternative<wire::Welcome>(message)) {
        NodeInfo info = node("b", 1);
        channel.send(wire::Join{"job-7", {info, "by hand", false}});
      } else if (std::holds_alternative<wire::Begin>(message)) {
        channel.send(wire::Challenge{});
      }
    }
    void broken(Channel&, const std::string&) override { is_broken = true; }
    explicit ByHand(const JobToken& the_token) : token(the_token) {}
    const JobToken& token;
    bool is_broken = false;
  } handler(token);
  Stranger stranger(cluster.server->port());
  Channel channel(cluster.loop, std::move(stranger.fd), kMaxCoordinatorBytes, handler);
  ASSERT_TRUE(cluster.all_finish());
  EXPECT_TRUE(handler.is_broken);
  EXPECT_EQ(good.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(good.outcome->reason, HasSubstr("node 1 (b) is lost: a message out of turn"));
}

TEST(MembershipTest, ALauncherThatDiesIsNoticedAndReplacedByNobody) {
  Cluster cluster(quick(1, 2, 1));
  cluster.add("a", 0);
  cluster.add("b", 1);
  ASSERT_TRUE(cluster.all_run(0));
  cluster.launchers[1]->membership.reset();  // what the kernel does to a killed one
  cluster.launchers[1]->outcome = JobOutcome{};
  ASSERT_TRUE(cluster.all_run(1));
  EXPECT_EQ(cluster.launchers[0]->map.nodes.size(), 1u);
  EXPECT_THAT(cluster.launchers[0]->stop_reason, HasSubstr("node 1 (b) is lost"));
}

TEST(MembershipTest, ASilentLauncherIsLostAndFindsOutItself) {
  Cluster cluster(quick(1, 2, 1));
  Launcher& good = cluster.add("a", 0);
  // On a loop of its own, which stands still like a process that got SIGSTOP.
  base::EventLoop stopped_loop;
  Launcher stopped;
  stopped.membership = join_remote(stopped_loop, node("b", 1), cluster.options, stopped);
  ASSERT_TRUE(cluster.run_until([&] {
    stopped_loop.run_once(milliseconds(0));
    return good.running == 0 && stopped.running == 0;
  }));
  ASSERT_TRUE(cluster.run_until([&] { return good.running == 1; }));
  EXPECT_THAT(good.stop_reason, HasSubstr("no sign of life"));
  EXPECT_EQ(stopped.running, 0);
  ASSERT_TRUE(run_until(stopped_loop, [&] { return stopped.outcome.has_value(); }));
  EXPECT_EQ(stopped.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(stopped.outcome->reason, HasSubstr("lost contact with the job"));
}

TEST(MembershipTest, AStartThatWasReadAfterTheLeaseIsNotDone) {
  Cluster cluster(quick(2, 2, 1));
  Launcher& good = cluster.add("a", 0);
  base::EventLoop stopped_loop;
  Launcher stopped;
  stopped.membership = join_remote(stopped_loop, node("b", 1), cluster.options, stopped);
  ASSERT_TRUE(cluster.run_until([&] {
    stopped_loop.run_once(milliseconds(0));
    return good.running == 0 && stopped.running == 0;
  }));
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

TEST(MembershipTest, ADeadCoordinatorEndsAll) {
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

TEST(MembershipTest, ASilentCoordinatorEndsAll) {
  // On a loop of its own, which stands still.
  base::EventLoop server_loop, loop;
  RendezvousOptions options = quick(1, 1, 5);
  CoordinatorServer server(server_loop, base::listen_on("127.0.0.1", 0), options, /*needs_host=*/false);
  options.port = server.port();
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  ASSERT_TRUE(run_until(loop, [&] {
    server_loop.run_once(milliseconds(0));
    return launcher.running.has_value();
  }));
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(launcher.outcome->reason, HasSubstr("no answer for 1 s"));
}

TEST(MembershipTest, ALauncherMayComeBeforeTheCoordinator) {
  base::EventLoop loop;
  base::ListenSocket reserved = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = reserved.port;
  reserved.fd.reset();
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  for (int i = 0; i < 5; ++i) loop.run_once(milliseconds(10));
  EXPECT_FALSE(launcher.outcome);
  CoordinatorServer server(loop, base::listen_on("127.0.0.1", options.port), options, /*needs_host=*/false);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.running == 0; }));
}

TEST(MembershipTest, AnUnreachableCoordinatorIsNamedWithWhatWasTried) {
  base::EventLoop loop;
  base::ListenSocket reserved = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = reserved.port;
  reserved.fd.reset();
  options.join_timeout = milliseconds(100);
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->kind, Kind::kRendezvousFailed);
  EXPECT_THAT(launcher.outcome->reason,
              HasSubstr("127.0.0.1:" + std::to_string(options.port) + ": Connection refused"));
}

TEST(MembershipTest, AListenerThatNeverAnswersIsNamed) {
  base::EventLoop loop;
  const base::ListenSocket silent = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = silent.port;
  options.stranger_timeout = milliseconds(20);
  options.join_timeout = milliseconds(200);
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_THAT(launcher.outcome->reason, HasSubstr("connected, but got no answer"));
}

TEST(MembershipTest, ACoordinatorWithoutTheTokenIsNotTrusted) {
  base::EventLoop loop;
  // Somebody who says welcome to everybody.
  const base::ListenSocket socket = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = socket.port;
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  struct Impostor : Channel::Handler {
    void received(Channel& channel, const wire::Message& message) override {
      EXPECT_FALSE(std::holds_alternative<wire::Join>(message)) << "told a stranger about itself";
      channel.send(wire::Welcome{});
    }
    void broken(Channel&, const std::string&) override {}
  } impostor;
  Channel channel(loop, base::UniqueFd(::accept(socket.fd.get(), nullptr, nullptr)), kMaxMemberBytes,
                  impostor);
  channel.send(wire::Challenge{});
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_THAT(launcher.outcome->reason, HasSubstr("does not know the job token"));
}

TEST(MembershipTest, TheLeaseCountsFromWhenTheAnsweredHeartbeatWasSent) {
  base::EventLoop loop;
  const base::ListenSocket socket = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.port = socket.port;
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  // A coordinator behind a link that keeps the answer to heartbeat 1 until 18 are sent.
  struct Slow : Channel::Handler {
    void received(Channel& channel, const wire::Message& message) override {
      if (const auto* hello = std::get_if<wire::Hello>(&message)) {
        channel.send(wire::Welcome{token.prove(JobToken::Side::kCoordinator, Nonce{}, hello->nonce)});
      } else if (std::holds_alternative<wire::Join>(message)) {
        channel.send(wire::Joined{milliseconds(50), milliseconds(1000)});
      } else if (std::holds_alternative<wire::Heartbeat>(message)) {
        if (++heartbeats == 18) channel.send(wire::Heartbeat{1});
      }
    }
    void broken(Channel&, const std::string&) override {}
    JobToken token{"secret"};
    int heartbeats = 0;
  } slow;
  Channel channel(loop, base::UniqueFd(::accept(socket.fd.get(), nullptr, nullptr)), kMaxMemberBytes, slow);
  channel.send(wire::Challenge{});
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->kind, Kind::kRendezvousFailed);
  EXPECT_LT(slow.heartbeats, 30);  // 22 at most, and not 18 + 20
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
  base::EventLoop loop;
  RendezvousOptions options = quick(1, 1);
  options.port = 1;
  Launcher launcher;
  launcher.membership = join_remote(loop, node("a"), options, launcher);
  launcher.membership->leave(SIGINT);
  EXPECT_FALSE(launcher.outcome) << "called from inside leave()";
  ASSERT_TRUE(run_until(loop, [&] { return launcher.outcome.has_value(); }));
  EXPECT_EQ(launcher.outcome->status(), 128 + SIGINT);
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
