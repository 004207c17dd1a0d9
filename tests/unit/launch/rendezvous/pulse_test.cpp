#include "launch/rendezvous/pulse.h"

#include <gtest/gtest.h>

#include <random>

#include "unit/launch/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

constexpr auto kMember = base::JobToken::Side::kMember;
constexpr auto kCoordinator = base::JobToken::Side::kCoordinator;

struct PulseTest : testing::Test {
  PulseKey key(base::JobToken::Side side) const { return {token, side, a, b}; }
  base::JobToken token{"secret"};
  base::Nonce a = base::make_nonce(), b = base::make_nonce();
};

TEST_F(PulseTest, Survives) {
  const std::string datagram = encode_pulse({7, 123'456'789'012}, key(kMember));
  const auto pulse = read_pulse(datagram);
  ASSERT_TRUE(pulse);
  EXPECT_EQ(pulse->member, 7u);
  EXPECT_EQ(pulse->sequence, 123'456'789'012);
  EXPECT_TRUE(verify_pulse(datagram, key(kMember)));
}

TEST_F(PulseTest, IsGoodForOneSideOfOneConnectionOfOneJob) {
  const std::string datagram = encode_pulse({7, 1}, key(kMember));
  EXPECT_FALSE(verify_pulse(datagram, key(kCoordinator))) << "no reflection";
  const base::JobToken other("Secret");
  EXPECT_FALSE(verify_pulse(datagram, {other, kMember, a, b}));
  EXPECT_FALSE(verify_pulse(datagram, {token, kMember, b, a}));
  EXPECT_FALSE(verify_pulse(datagram, {token, kMember, a, base::make_nonce()}));
}

TEST_F(PulseTest, EveryChangedBitIsNoticed) {
  const std::string datagram = encode_pulse({7, 1}, key(kMember));
  for (size_t bit = 0; bit < 8 * datagram.size(); ++bit) {
    std::string changed = datagram;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(read_pulse(changed) && verify_pulse(changed, key(kMember))) << bit;
  }
}

TEST_F(PulseTest, AnythingElseIsNone) {
  const std::string datagram = encode_pulse({7, 1}, key(kMember));
  for (size_t size = 0; size < datagram.size(); ++size) EXPECT_FALSE(read_pulse(datagram.substr(0, size)));
  EXPECT_FALSE(read_pulse(datagram + "x"));
  std::mt19937_64 random(1);
  for (int i = 0; i < 10'000; ++i) {
    std::string noise = datagram;
    for (char& byte : noise) byte = static_cast<char>(random());
    EXPECT_FALSE(read_pulse(noise) && verify_pulse(noise, key(kMember)));
  }
}

// Whoever sends datagrams to the coordinator's port cannot keep a silent member alive.
TEST(PulseOverSocketsTest, AForgedPulseIsNoSignOfLife) {
  using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it
  Cluster cluster(with_short_lease(quick(1, 2, 1)));
  Launcher& good = cluster.add("a", 0);
  base::EventLoop stopped_loop;
  Launcher stopped;
  ASSERT_TRUE(cluster.runs_with(stopped, stopped_loop));
  SocketAddress target;
  auto& v4 = reinterpret_cast<sockaddr_in&>(target.storage);
  v4.sin_family = AF_INET;
  v4.sin_port = htons(cluster.server->port());
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  target.length = sizeof v4;
  const base::UniqueFd fd = open_pulse_socket(target);
  const base::JobToken wrong("another");
  const base::Nonce nonce{};
  int64_t sequence = 1000;
  ASSERT_TRUE(cluster.run_until([&] {
    for (MemberId member = 0; member < 5; ++member) {
      send_datagram(fd.get(), encode_pulse({member, sequence++}, {wrong, kMember, nonce, nonce}), target);
    }
    return good.running == 1;
  }));
}

// A coordinator that takes what comes by TCP and answers only pulses.
TEST(PulseOverSocketsTest, PulsesAloneKeepAMemberAlive) {
  using namespace testing_cluster;  // NOLINT(google-build-using-namespace): all of it
  Single single;
  ByHand deaf;
  const base::UniqueFd pulses = open_pulse_socket(deaf.socket.fd.get());
  ASSERT_TRUE(pulses);
  single.join(quick(1, 1), deaf.socket.port);
  int heartbeats = 0, answers = 0;
  deaf.accept(single.loop, [&](Channel& channel, const wire::Message& message) {
    if (std::holds_alternative<wire::Join>(message)) {
      channel.send(wire::Joined{milliseconds(50), milliseconds(500), 42});
    } else if (std::holds_alternative<wire::Heartbeat>(message)) {
      ++heartbeats;
    }
  });
  ASSERT_TRUE(single.run_until([&] {
    // Several leases long; then no answer comes any more.
    while (const auto datagram = heartbeats < 50 ? receive_datagram(pulses.get()) : std::nullopt) {
      EXPECT_FALSE(single.launcher.outcome);
      const auto pulse = read_pulse(datagram->bytes);
      EXPECT_TRUE(verify_pulse(datagram->bytes, {deaf.token, kMember, deaf.nonce, deaf.its_nonce}));
      EXPECT_EQ(pulse->member, 42u);
      send_datagram(pulses.get(),
                    encode_pulse(*pulse, {deaf.token, kCoordinator, deaf.nonce, deaf.its_nonce}),
                    datagram->from);
      ++answers;
    }
    return single.launcher.outcome.has_value();
  }));
  EXPECT_GE(heartbeats, 50) << "the lease was renewed by pulses";
  EXPECT_GT(answers, 0);
}

}  // namespace
}  // namespace lockstep::launcher
