// Strangers are kept out without any effect on the members.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <poll.h>

#include <csignal>

#include "cluster/node_resources.h"
#include "unit/launcher/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it
using ::testing::HasSubstr;
using Kind = JobOutcome::Kind;

TEST(StrangersTest, AWrongTokenIsRefusedAndNobodyElseNotices) {
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

TEST(StrangersTest, AnotherRunIsRefusedWithBothNames) {
  Cluster cluster(quick(1, 1));
  RendezvousOptions other = cluster.options;
  other.run_id = "job-8";
  Launcher& launcher = cluster.add("a", std::nullopt, other);
  ASSERT_TRUE(cluster.all_finish());
  EXPECT_THAT(launcher.outcome->reason,
              HasSubstr("the job here is \"job-7\", the launcher belongs to \"job-8\""));
}

TEST(StrangersTest, AnotherIdeaOfTheJobIsRefusedWithBothHostsAndValues) {
  Cluster cluster(quick(2, 4, 3));
  RendezvousOptions other = cluster.options;
  other.max_restarts = 2;
  const Launcher& patient = cluster.add("gpu07", std::nullopt, other);
  other = cluster.options;
  other.min_nodes = other.max_nodes = 3;
  const Launcher& fixed = cluster.add("gpu08", std::nullopt, other);
  ASSERT_TRUE(cluster.all_finish());
  const std::string host = cluster::host_name();
  EXPECT_THAT(patient.outcome->reason,
              HasSubstr("--max-restarts is 2 on gpu07 and 3 on " + host + ", which hosts the job"));
  EXPECT_THAT(fixed.outcome->reason, HasSubstr("--nnodes is 3 on gpu08 and 2:4 on " + host));
  EXPECT_EQ(fixed.outcome->status(), kExitRendezvous);
}

TEST(StrangersTest, ATakenRankIsRefused) {
  Cluster cluster(quick(2, 2));
  cluster.add("a", 0);
  Launcher& second = cluster.add("b", 0);
  Launcher& first = *cluster.launchers[0];
  ASSERT_TRUE(cluster.run_until([&] { return second.outcome || first.outcome; }));
  const Launcher& refused = second.outcome ? second : first;
  EXPECT_THAT(refused.outcome->reason, HasSubstr("node rank 0 is taken by"));
}

TEST(StrangersTest, StrangersAreCutOffWhateverTheySay) {
  Cluster cluster(quick(2, 2));
  std::vector<std::unique_ptr<Stranger>> strangers;
  const std::string magic{'L', 'S', 'R', static_cast<char>(kWireVersion)};
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

TEST(StrangersTest, SlowStrangersAreCutOffInTime) {
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

TEST(StrangersTest, ManyStrangersKeepNobodyOut) {
  RendezvousOptions options = quick(2, 2);
  options.max_strangers = 4;
  options.stranger_timeout = milliseconds(100);
  Cluster cluster(options);
  std::vector<std::unique_ptr<Stranger>> strangers;
  for (int i = 0; i < 30; ++i) strangers.push_back(std::make_unique<Stranger>(cluster.server->port()));
  cluster.add("a");
  cluster.add("b");
  EXPECT_TRUE(cluster.all_run(0));
}

// A hand-made member that joins and then sends a message out of turn. Without a seal on its
// messages it stands for an attacker on the path of a proven member.
struct MemberByHand : Channel::Handler {
  using Side = base::JobToken::Side;

  MemberByHand(const base::JobToken& the_token, bool is_sealed) : token(the_token), seals(is_sealed) {}

  void received(Channel& channel, wire::Message message) override {
    if (const auto* challenge = std::get_if<wire::Challenge>(&message)) {
      nonces = {challenge->nonce, base::make_nonce()};
      channel.send(wire::Hello{nonces.second, token.prove(Side::kMember, nonces.first, nonces.second)});
    } else if (std::holds_alternative<wire::Welcome>(message)) {
      is_welcome = true;
      if (seals) {
        channel.seal(token.seal(Side::kMember, nonces.first, nonces.second),
                     token.seal(Side::kCoordinator, nonces.first, nonces.second));
      }
      channel.send(wire::Join{"job-7", 1, 2, 0, std::chrono::seconds(30), {node("b", 1), "by hand", false}});
    } else if (std::holds_alternative<wire::Start>(message)) {
      channel.send(wire::Challenge{});
    }
  }
  void broken(Channel&, const std::string&) override { is_broken = true; }

  const base::JobToken& token;
  const bool seals;
  std::pair<base::Nonce, base::Nonce> nonces;
  bool is_welcome = false, is_broken = false;
};

TEST(StrangersTest, AMemberThatBreaksTheProtocolIsLost) {
  Cluster cluster(quick(1, 2, 0));
  Launcher& good = cluster.add("a", 0);
  const base::JobToken token(cluster.options.token);
  MemberByHand handler(token, /*is_sealed=*/true);
  Stranger stranger(cluster.server->port());
  Channel channel(cluster.loop, std::move(stranger.fd), kMaxCoordinatorBytes, handler);
  ASSERT_TRUE(cluster.all_finish());
  EXPECT_TRUE(handler.is_broken);
  EXPECT_EQ(good.outcome->kind, Kind::kNodeLost);
  EXPECT_THAT(good.outcome->reason, HasSubstr("node 1 (b) is lost: a message out of turn"));
}

TEST(StrangersTest, WhatIsNotSealedIsNotHeard) {
  Cluster cluster(quick(1, 2, 0));
  Launcher& good = cluster.add("a", 0);
  const base::JobToken token(cluster.options.token);
  MemberByHand handler(token, /*is_sealed=*/false);
  Stranger stranger(cluster.server->port());
  Channel channel(cluster.loop, std::move(stranger.fd), kMaxCoordinatorBytes, handler);
  ASSERT_TRUE(cluster.run_until([&] { return handler.is_broken; }));
  EXPECT_TRUE(handler.is_welcome);
  EXPECT_FALSE(good.outcome);
}

TEST(StrangersTest, TheRefusalOfAStrangerIsNotBelieved) {
  Single single;
  ByHand coordinator;
  RendezvousOptions options = quick(1, 1);
  options.unproven_patience = seconds(60);
  single.join(options, coordinator.socket.port);
  struct Refuser : Channel::Handler {
    void received(Channel&, wire::Message) override {}
    void broken(Channel&, const std::string&) override { is_left = true; }
    bool is_left = false;
  } refuser;
  {
    Channel stranger(single.loop, base::UniqueFd(::accept(coordinator.socket.fd.get(), nullptr, nullptr)),
                     kMaxMemberBytes, refuser);
    stranger.send(wire::Refused{"go away"});
    ASSERT_TRUE(single.run_until([&] { return refuser.is_left; }));
  }
  ASSERT_TRUE(single.run_until([&] {
    pollfd again{coordinator.socket.fd.get(), POLLIN, 0};
    return ::poll(&again, 1, 0) > 0;
  })) << "it comes again";
  bool has_joined = false;
  coordinator.accept(single.loop, [&](Channel&, const wire::Message& message) {
    has_joined = std::holds_alternative<wire::Join>(message);
  });
  ASSERT_TRUE(single.run_until([&] { return has_joined; }));
  EXPECT_FALSE(single.launcher.outcome);
}

TEST(StrangersTest, ACoordinatorWithoutTheTokenIsNotTrusted) {
  Single single;
  // A peer that answers every Hello with a Welcome.
  const base::ListenSocket socket = base::listen_on("127.0.0.1", 0);
  RendezvousOptions options = quick(1, 1);
  options.unproven_patience = milliseconds(0);
  single.join(options, socket.port);
  struct Impostor : Channel::Handler {
    void received(Channel& channel, wire::Message message) override {
      EXPECT_FALSE(std::holds_alternative<wire::Join>(message)) << "told a stranger about itself";
      channel.send(wire::Welcome{});
    }
    void broken(Channel&, const std::string&) override {}
  } impostor;
  Channel channel(single.loop, base::UniqueFd(::accept(socket.fd.get(), nullptr, nullptr)), kMaxMemberBytes,
                  impostor);
  channel.send(wire::Challenge{});
  ASSERT_TRUE(single.finishes());
  EXPECT_THAT(single.launcher.outcome->reason,
              HasSubstr("the job token is wrong, or a stranger answers there"));
}

}  // namespace
}  // namespace lockstep::launcher
