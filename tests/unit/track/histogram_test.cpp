#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/track.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

Histogram of(const std::vector<double>& values) { return Histogram::of(std::span<const double>(values)); }

TEST(HistogramTest, CountsAndSums) {
  const Histogram histogram = of({1, 2, -3});
  EXPECT_EQ(histogram.min, -3);
  EXPECT_EQ(histogram.max, 2);
  EXPECT_EQ(histogram.count, 3);
  EXPECT_EQ(histogram.sum, 0);
  EXPECT_EQ(histogram.sum_squares, 14);
}

TEST(HistogramTest, KeepsTheBucketsAroundTheValuesAndAnEmptyOneBefore) {
  const Histogram histogram = of({1e-12});  // a limit belongs to the bucket above it
  EXPECT_THAT(histogram.bucket_limits, ElementsAre(1e-12, 1e-12 * 1.1));
  EXPECT_THAT(histogram.bucket_counts, ElementsAre(0, 1));
}

TEST(HistogramTest, ZeroLiesBetweenTheSmallestLimits) {
  const Histogram histogram = of({0, 0, -1e-13});
  EXPECT_THAT(histogram.bucket_limits, ElementsAre(-1e-12, 0, 1e-12));
  EXPECT_THAT(histogram.bucket_counts, ElementsAre(0, 1, 2));
}

TEST(HistogramTest, FloatsAreCountedAsTheyAre) {
  const std::vector<float> values = {0.1F, 0.2F};
  const Histogram histogram = Histogram::of(std::span<const float>(values));
  EXPECT_EQ(histogram.min, static_cast<double>(0.1F));
  EXPECT_EQ(histogram.count, 2);
}

TEST(HistogramTest, WhatIsInNoBucketStillShows) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Histogram with_nan = of({1, std::nan(""), 2});
  EXPECT_TRUE(std::isnan(with_nan.min));
  EXPECT_TRUE(std::isnan(with_nan.max));
  EXPECT_TRUE(std::isnan(with_nan.sum));
  EXPECT_EQ(with_nan.count, 3);
  EXPECT_EQ(std::accumulate(with_nan.bucket_counts.begin(), with_nan.bucket_counts.end(), 0.0), 2);

  const Histogram with_infinity = of({1, infinity, -infinity, 1e30});
  EXPECT_EQ(with_infinity.min, -infinity);
  EXPECT_EQ(with_infinity.max, infinity);
  EXPECT_EQ(std::accumulate(with_infinity.bucket_counts.begin(), with_infinity.bucket_counts.end(), 0.0), 1);
}

TEST(HistogramTest, IsNeverWithoutABucket) {
  EXPECT_THAT(of({}).bucket_counts, ElementsAre(0));
  EXPECT_EQ(of({}).count, 0);
  EXPECT_THAT(of({std::nan("")}).bucket_counts, ElementsAre(0));
  EXPECT_THAT(of({std::nan("")}).bucket_limits, SizeIs(1));
}

}  // namespace
}  // namespace lockstep
