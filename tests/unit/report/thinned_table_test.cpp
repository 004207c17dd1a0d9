#include "report/thinned_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::report {
namespace {

using testing::ElementsAre;

TEST(ThinnedTableTest, FewRowsAreKeptAsTheyAre) {
  ThinnedTable table;
  const size_t loss = table.column("loss");
  for (int i = 1; i <= 3; ++i) {
    table.begin_row(10 * i);
    table.add(loss, 1.0 / i);
  }
  EXPECT_FALSE(table.is_thinned());
  EXPECT_THAT(table.points("loss"), ElementsAre(Point{10, 1}, Point{20, 0.5}, Point{30, 1.0 / 3}));
  EXPECT_EQ(table.points("loss"), table.means("loss"));
}

TEST(ThinnedTableTest, AMillionRowsKeepEverySpikeInBoundedSpace) {
  ThinnedTable table;
  const size_t loss = table.column("loss");
  constexpr int kRows = 1'000'000;
  for (int i = 0; i < kRows; ++i) {
    table.begin_row(i);
    table.add(loss, i == 777'777 ? 1e6 : i == 123'456 ? -1e6 : std::sin(i * 1e-3));
  }
  EXPECT_TRUE(table.is_thinned());
  EXPECT_EQ(table.rows(), kRows);
  const std::vector<Point> points = table.points("loss");
  EXPECT_LE(points.size(), 2 * ThinnedTable::kMaxBuckets + 1);
  EXPECT_GE(points.size(), ThinnedTable::kMaxBuckets / 2);
  EXPECT_EQ(std::count(points.begin(), points.end(), Point{777'777, 1e6}), 1);
  EXPECT_EQ(std::count(points.begin(), points.end(), Point{123'456, -1e6}), 1);
  EXPECT_EQ(points.back().x, kRows - 1);
  EXPECT_TRUE(
      std::is_sorted(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; }));
  EXPECT_EQ(table.totals("loss")->greatest, (Point{777'777, 1e6}));
}

// Every size around the one at which buckets are merged, against all rows.
TEST(ThinnedTableTest, NoRowIsLostWhenBucketsAreMerged) {
  constexpr int kMost = static_cast<int>(2 * ThinnedTable::kMaxBuckets) + 5;
  for (int rows = static_cast<int>(ThinnedTable::kMaxBuckets) - 2; rows < kMost; ++rows) {
    ThinnedTable table;
    const size_t column = table.column("x");
    for (int i = 0; i < rows; ++i) {
      table.begin_row(i);
      table.add(column, i);
    }
    const std::vector<Point> means = table.means("x");
    // Means of neighbours, so that with their counts they add up to the whole.
    EXPECT_LE(means.size(), ThinnedTable::kMaxBuckets) << rows;
    EXPECT_EQ(means.back().x, rows - 1) << rows;
    EXPECT_EQ(table.points("x").front(), (Point{0, 0})) << rows;
    EXPECT_EQ(table.points("x").back().y, rows - 1) << rows;
    EXPECT_DOUBLE_EQ(table.totals("x")->mean(), (rows - 1) / 2.0);
  }
}

TEST(ThinnedTableTest, ColumnsWithGapsShareTheBuckets) {
  ThinnedTable table;
  const size_t often = table.column("often");
  const size_t seldom = table.column("seldom");
  for (int i = 0; i < 5000; ++i) {
    table.begin_row(i);
    table.add(often, i);
    if (i % 1000 == 500) table.add(seldom, -i);
  }
  const std::vector<Point> all = table.means("often");
  for (const Point& point : table.means("seldom")) {
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Point& other) { return other.x == point.x; }));
  }
  EXPECT_THAT(table.points("seldom"), ElementsAre(Point{500, -500}, Point{1500, -1500}, Point{2500, -2500},
                                                  Point{3500, -3500}, Point{4500, -4500}));
}

TEST(ThinnedTableTest, ValuesThatAreNotFiniteAreCountedApart) {
  ThinnedTable table;
  const size_t loss = table.column("loss");
  const double values[] = {1, std::numeric_limits<double>::quiet_NaN(),
                           std::numeric_limits<double>::infinity(), 3};
  for (int i = 0; i < 4; ++i) {
    table.begin_row(i);
    table.add(loss, values[i]);
  }
  EXPECT_THAT(table.points("loss"), ElementsAre(Point{0, 1}, Point{3, 3}));
  EXPECT_EQ(table.totals("loss")->not_finite, 2);
  EXPECT_EQ(table.totals("loss")->first_not_finite_x, 1);
  EXPECT_EQ(table.totals("loss")->mean(), 2);
}

TEST(ThinnedTableTest, AColumnWithoutValuesHasNoPoints) {
  ThinnedTable table;
  table.column("empty");
  table.begin_row(1);
  EXPECT_EQ(table.totals("empty"), nullptr);
  EXPECT_EQ(table.totals("unknown"), nullptr);
  EXPECT_TRUE(table.points("empty").empty());
  EXPECT_TRUE(table.means("unknown").empty());
}

}  // namespace
}  // namespace lockstep::report
