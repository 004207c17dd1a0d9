#include "parallel/unit_schedule.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <utility>

namespace lockstep::parallel {
namespace {

// Says what it was asked for.
class ListeningGatherer final : public Gatherer {
 public:
  Gather start(size_t bucket) override {
    said += " start" + std::to_string(bucket);
    return {};
  }
  void release(size_t bucket) override { said += " release" + std::to_string(bucket); }
  void wait_for_updates(size_t unit) override { said += " wait" + std::to_string(unit); }
  void forget_free() override {}

  std::string take() { return std::exchange(said, ""); }

 private:
  std::string said;
};

constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

TEST(UnitScheduleTest, AResidentUnitWaitsForItsUpdateWhenItRunsAndNotBefore) {
  ListeningGatherer gatherer;
  UnitSchedule schedule({{}, {}, {}}, gatherer, kAll);
  schedule.begin_step();
  EXPECT_EQ(gatherer.take(), " wait0");
  schedule.before_forward(1);
  EXPECT_EQ(gatherer.take(), " wait1");
  schedule.before_forward(2);
  EXPECT_EQ(gatherer.take(), " wait2");
}

TEST(UnitScheduleTest, WhoHoldsAllUnitsWaitsForAllUpdates) {
  ListeningGatherer gatherer;
  UnitSchedule schedule({{}, {}, {}}, gatherer, kAll);
  schedule.hold();
  EXPECT_EQ(gatherer.take(), " wait0 wait1 wait2");
}

TEST(UnitScheduleTest, TheNextUnitIsGatheredAheadFromTheSecondForwardOn) {
  ListeningGatherer gatherer;
  UnitSchedule schedule({{}, {{0}, 10}, {{1}, 10}}, gatherer, kAll);
  const auto forward = [&] {
    schedule.begin_step();
    for (const size_t unit : {1, 2}) {
      schedule.before_forward(unit);
      schedule.after_forward(unit);
    }
    return gatherer.take();
  };
  // The first one seems to be the last one until the second comes.
  EXPECT_EQ(forward(), " wait0 start0 wait1 wait1 release0 start1 wait2");
  schedule.release_all();
  gatherer.take();
  EXPECT_EQ(forward(), " wait0 start0 wait1 start1 wait1 release0 wait2");
}

}  // namespace
}  // namespace lockstep::parallel
