#include "parallel/bucket_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace lockstep::parallel {
namespace {

using parallel::BucketItem;
using parallel::BucketLayout;

std::vector<BucketItem> random_items(std::mt19937& random) {
  std::vector<BucketItem> items(1 + random() % 20);
  for (BucketItem& item : items) {
    item.numel = random() % 4 == 0 ? random() % 3 : random() % 5000;
    item.dtype = random() % 2 == 0 ? c10::ScalarType::Float : c10::ScalarType::BFloat16;
    item.family = static_cast<int>(random() % 3);
  }
  return items;
}

TEST(ShardPlan, EveryElementHasOneOwner) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const std::vector<BucketItem> items = random_items(random);
    const int ranks = 1 + static_cast<int>(random() % 9);
    std::vector<std::vector<int>> owners(items.size());
    for (size_t i = 0; i < items.size(); ++i) owners[i].assign(static_cast<size_t>(items[i].numel), 0);
    for (const BucketLayout& layout : plan_shards(items, 4000, ranks)) {
      for (int rank = 0; rank < ranks; ++rank) {
        int64_t end = 0;
        for (const OwnedRange& range : owned_ranges(layout, items, ranks, rank)) {
          EXPECT_GE(range.offset, end) << "seed " << seed;
          end = range.offset + range.count;
          auto& owned = owners[layout.slots[range.slot].item];
          for (int64_t i = 0; i < range.count; ++i) ++owned[static_cast<size_t>(range.first + i)];
        }
        EXPECT_LE(end, layout.numel / ranks) << "seed " << seed;
      }
    }
    for (const auto& owned : owners) EXPECT_THAT(owned, testing::Each(1)) << "seed " << seed;
  }
}

TEST(ShardPlan, PartsAreEqualAndStartAtACacheLine) {
  std::vector<BucketItem> items(3);
  items[0] = {.numel = 1000};
  items[1] = {.numel = 7, .dtype = c10::ScalarType::BFloat16};
  items[2] = {.numel = 1};
  for (const int ranks : {1, 2, 3, 8}) {
    for (const BucketLayout& layout : plan_shards(items, 1 << 20, ranks)) {
      ASSERT_EQ(layout.numel % ranks, 0);
      const auto part_bytes = layout.numel / ranks * static_cast<int64_t>(c10::elementSize(layout.dtype));
      EXPECT_EQ(part_bytes % parallel::kSlotAlignmentBytes, 0);
    }
  }
}

TEST(ShardPlan, FamiliesDoNotShareABucket) {
  std::vector<BucketItem> items = {
      {.numel = 10, .family = 0}, {.numel = 10, .family = 1}, {.numel = 10, .family = 0}};
  const auto plan = plan_shards(items, 1 << 20, 2);
  ASSERT_EQ(plan.size(), 2u);
  for (const BucketLayout& layout : plan) {
    for (const parallel::BucketSlot& slot : layout.slots) EXPECT_EQ(items[slot.item].family, layout.family);
  }
}

TEST(ShardPlan, RanksBeyondTheElementsOwnNothing) {
  const std::vector<BucketItem> items = {{.numel = 3}};
  const auto plan = plan_shards(items, 1 << 20, 4);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(owned_ranges(plan[0], items, 4, 0).size(), 1u);
  EXPECT_TRUE(owned_ranges(plan[0], items, 4, 3).empty());
}

}  // namespace
}  // namespace lockstep::parallel
