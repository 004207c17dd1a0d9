#include "launcher/rendezvous/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "unit/launcher/rendezvous/test_cluster.h"

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Due = Heartbeats::Due;

class HeartbeatsTest : public testing::Test {
 protected:
  Heartbeats::Time at(int ms) const { return start_ + milliseconds(ms); }
  // Calls due() once per check period, answers each heartbeat after so long (-1: never), and
  // returns the times at which one was sent.
  std::vector<int> send_until(int end_ms, int answer_after_ms) {
    std::vector<int> sent;
    for (; now_ms_ < end_ms; now_ms_ += 10) {
      while (!answers_.empty() && answers_.front().first <= now_ms_) {
        EXPECT_TRUE(heartbeats.answered(answers_.front().second, at(now_ms_)));
        answers_.erase(answers_.begin());
      }
      const Due due = heartbeats.due(at(now_ms_));
      if (now_ms_ % 100 != 0 || due == Due::kNone) continue;
      (due == Due::kRegular ? sent : urgent).push_back(now_ms_);
      const int64_t number = heartbeats.send(at(now_ms_), due);
      if (answer_after_ms >= 0) answers_.emplace_back(now_ms_ + answer_after_ms, number);
    }
    return sent;
  }

  Heartbeats heartbeats{milliseconds(500)};
  std::vector<int> urgent;  // when those were sent

 private:
  const Heartbeats::Time start_ = Heartbeats::Time() + std::chrono::hours(1);
  int now_ms_ = 0;
  std::vector<std::pair<int, int64_t>> answers_;  // when, and to which
};

TEST_F(HeartbeatsTest, AreSentOnceAnIntervalWhereTheyAreAnswered) {
  EXPECT_EQ(heartbeats.look_period(), milliseconds(100));
  EXPECT_THAT(send_until(2000, 10), ElementsAre(0, 500, 1000, 1500));
  EXPECT_THAT(urgent, IsEmpty());
}

TEST_F(HeartbeatsTest, UrgentOnesFollowSoonWhereTheyAreNot) {
  send_until(600, 10);
  EXPECT_THAT(send_until(1800, -1), ElementsAre(1000, 1500));
  EXPECT_THAT(urgent, ElementsAre(1100, 1200, 1300, 1400, 1600, 1700));
}

TEST_F(HeartbeatsTest, ALongWayIsNoLoss) {
  send_until(5000, 400);  // until it knows
  urgent.clear();
  EXPECT_THAT(send_until(6500, 400), ElementsAre(5000, 5500, 6000));
  EXPECT_THAT(urgent, IsEmpty());
}

TEST_F(HeartbeatsTest, AnAnswerTellsWhenItsQuestionWasSent) {
  heartbeats.send(at(0), Due::kRegular);
  heartbeats.send(at(500), Due::kRegular);
  heartbeats.send(at(600), Due::kUrgent);
  EXPECT_EQ(heartbeats.answered(1, at(900)), at(500));
  EXPECT_FALSE(heartbeats.answered(1, at(901))) << "answered already";
  EXPECT_FALSE(heartbeats.answered(0, at(902))) << "older than an answer";
  EXPECT_FALSE(heartbeats.answered(7, at(903))) << "never sent";
}

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

// A member whose clock is an hour behind reports its failure in the coordinator's time.
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
      channel.send(wire::GenerationMap{map});
      channel.send(wire::Start{0, 0});
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

// Forged datagrams to the coordinator's port cannot keep a silent member alive.
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
