#include "checkpoint/rotation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Best = RotationRule::Best;

Entry entry(std::optional<double> metric, bool valid = true) {
  return {.metric = metric, .problem = valid ? "" : "broken"};
}

TEST(RotationTest, KeepsTheNewest) {
  const std::vector<Entry> entries(5, entry(std::nullopt));
  EXPECT_THAT(to_remove(entries, {.keep_last = 2}), ElementsAre(2, 3, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 9}), IsEmpty());
  EXPECT_THAT(to_remove(entries, {.keep_last = 0}), IsEmpty());
}

TEST(RotationTest, KeepsTheBestBesideTheNewest) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.4), entry(0.9), entry(0.1), entry(0.2)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1, 2, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 2}), ElementsAre(1, 2));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1, .best = Best::kMax}), ElementsAre(1, 3, 4));
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 0}), ElementsAre(1, 2, 3, 4));
}

TEST(RotationTest, WhatWasSavedAsTheBestCountsMoreThanTheMetric) {
  std::vector<Entry> entries = {entry(0.5), entry(0.4), entry(0.9), entry(0.1), entry(0.7)};
  entries[2].best = true;
  entries[4].best = true;
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1, 3, 4));
  EXPECT_THAT(best_first(entries, Best::kSaved), ElementsAre(2, 4, 3, 1, 0));
  EXPECT_THAT(best_first(entries, Best::kMin), ElementsAre(3, 1, 0, 4, 2));
}

TEST(RotationTest, OfEqualsTheNewerIsTheBest) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.1), entry(0.1)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(2));
}

TEST(RotationTest, BrokenOnesNeitherCountNorGo) {
  const std::vector<Entry> entries = {entry(0.5), entry(0.6), entry(0.0, false), entry(0.1, false)};
  EXPECT_THAT(to_remove(entries, {.keep_last = 1, .keep_best = 1}), ElementsAre(1));
  EXPECT_THAT(to_remove({entry(0.3, false), entry(0.5)}, {.keep_last = 1, .keep_best = 0}), IsEmpty());
}

}  // namespace
}  // namespace lockstep::checkpoint
