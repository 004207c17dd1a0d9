#include "parallel/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::parallel {
namespace {

using testing::ElementsAre;

constexpr int64_t kMiB = 1 << 20;

std::vector<size_t> items_of(const BucketLayout& bucket) {
  std::vector<size_t> items;
  for (const BucketSlot& slot : bucket.slots) items.push_back(slot.item);
  return items;
}

std::vector<BucketItem> floats(std::initializer_list<int64_t> numels) {
  std::vector<BucketItem> items;
  for (int64_t numel : numels) items.push_back({.numel = numel});
  return items;
}

TEST(BucketPlan, NoItemsGiveNoBuckets) { EXPECT_TRUE(plan_buckets({}, {1, 1}).empty()); }

TEST(BucketPlan, SmallModelIsOneBucketInReverseOrder) {
  const auto plan = plan_buckets(floats({16, 16, 16, 32}), {kMiB, 25 * kMiB});
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_THAT(items_of(plan[0]), ElementsAre(3, 2, 1, 0));
}

TEST(BucketPlan, FirstBucketClosesAtItsOwnLimit) {
  // 100 floats are 400 bytes: the first bucket closes at 400 or more, later ones at 800.
  const auto plan = plan_buckets(floats({100, 100, 100, 100, 100, 100}), {400, 800});
  ASSERT_EQ(plan.size(), 4u);
  EXPECT_THAT(items_of(plan[0]), ElementsAre(5));
  EXPECT_THAT(items_of(plan[1]), ElementsAre(4, 3));
  EXPECT_THAT(items_of(plan[2]), ElementsAre(2, 1));
  EXPECT_THAT(items_of(plan[3]), ElementsAre(0));
}

TEST(BucketPlan, BucketOvershootsRatherThanSplits) {
  const auto plan = plan_buckets(floats({5, 1000, 99}), {400, 400});
  ASSERT_EQ(plan.size(), 2u);
  EXPECT_THAT(items_of(plan[0]), ElementsAre(2, 1));  // 396 bytes were not enough to close
  EXPECT_THAT(items_of(plan[1]), ElementsAre(0));
}

TEST(BucketPlan, PacksWithoutPaddingAndAlignsWhatCanBe) {
  // 64, 68, 0, 64 and 12 bytes.
  const std::vector<BucketItem> items = floats({16, 17, 0, 16, 3});
  const auto plan = plan_buckets(items, {kMiB, kMiB});
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_THAT(items_of(plan[0]), ElementsAre(3, 2, 0, 4, 1));
  int64_t end = 0;
  for (const BucketSlot& slot : plan[0].slots) {
    EXPECT_EQ(slot.offset, end);
    end += items[slot.item].numel;
  }
  EXPECT_EQ(plan[0].numel, 16 + 17 + 0 + 16 + 3);
}

TEST(BucketPlan, DtypesAndDevicesDoNotMix) {
  std::vector<BucketItem> items = floats({10, 10, 10, 10});
  items[1].dtype = c10::ScalarType::Double;
  items[2].device = c10::Device(c10::DeviceType::CUDA, 1);
  const auto plan = plan_buckets(items, {kMiB, kMiB});
  ASSERT_EQ(plan.size(), 3u);
  // In the order in which they fill: item 2 and item 1 are complete before item 0.
  EXPECT_THAT(items_of(plan[0]), ElementsAre(2));
  EXPECT_EQ(plan[0].device, items[2].device);
  EXPECT_THAT(items_of(plan[1]), ElementsAre(1));
  EXPECT_EQ(plan[1].dtype, c10::ScalarType::Double);
  EXPECT_THAT(items_of(plan[2]), ElementsAre(3, 0));
}

TEST(BucketPlan, EachKindHasItsOwnFirstLimit) {
  std::vector<BucketItem> items = floats({100, 100, 100, 100});
  items[0].dtype = items[1].dtype = c10::ScalarType::Half;
  const auto plan = plan_buckets(items, {200, kMiB});
  ASSERT_EQ(plan.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_THAT(items_of(plan[i]), ElementsAre(3 - i));
}

TEST(BucketPlan, ALimitThatIsNotPositiveIsABug) {
  EXPECT_THROW(plan_buckets(floats({1}), {0, 1}), InternalError);
  EXPECT_THROW(plan_buckets(floats({1}), {1, -5}), InternalError);
}

}  // namespace
}  // namespace lockstep::parallel
