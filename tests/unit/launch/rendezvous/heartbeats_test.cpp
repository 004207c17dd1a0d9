#include "launch/rendezvous/heartbeats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace lockstep::launcher {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Due = Heartbeats::Due;

class HeartbeatsTest : public testing::Test {
 protected:
  Heartbeats::Time at(int ms) const { return start_ + milliseconds(ms); }
  // Looks as often as asked for, answers each one after so long (-1: never), and gives
  // the times at which one was sent.
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

}  // namespace
}  // namespace lockstep::launcher
