#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "report/svg_plot.h"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

TEST(SvgAxisTest, MarksAreRound) {
  EXPECT_THAT(round_ticks(0.13, 0.87, 5, false).labels,
              ElementsAre("0.0", "0.2", "0.4", "0.6", "0.8", "1.0"));
  EXPECT_THAT(round_ticks(0, 40, 8, true).labels,
              ElementsAre("0", "5", "10", "15", "20", "25", "30", "35", "40"));
  EXPECT_THAT(round_ticks(-1, 1, 4, false).labels, ElementsAre("-1.0", "-0.5", "0.0", "0.5", "1.0"));
}

TEST(SvgAxisTest, EveryRangeHasMarksInsideIt) {
  for (const auto& [low, high] : std::vector<std::pair<double, double>>{{0, 0},
                                                                        {5, 5},
                                                                        {-3, -3},
                                                                        {1e-12, 2e-12},
                                                                        {1e12, 3e12},
                                                                        {1, 1 + 1e-9},
                                                                        {-1e300, 1e300},
                                                                        {0.01, 0.01}}) {
    const Ticks ticks = round_ticks(low, high, 6, false);
    EXPECT_LE(ticks.low, low);
    EXPECT_GE(ticks.high, high);
    EXPECT_LT(ticks.low, ticks.high);
    EXPECT_GE(ticks.at.size(), 2u) << low << " " << high;
    EXPECT_LE(ticks.at.size(), 20u) << low << " " << high;
  }
}

Chart chart_with(Chart::Kind kind) {
  Chart chart{.id = "loss", .title = "Loss", .y_label = "loss", .x_label = "epoch", .kind = kind};
  chart.series.push_back({.label = "training", .colour = 0, .points = {{0, 1}, {1, 0.5}}});
  chart.series.push_back(
      {.label = "validation", .colour = 1, .dash = Dash::kDashed, .points = {{0, 2}, {1, 1}}});
  return chart;
}

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST(SvgPlotTest, LinesHaveAxesAndALegend) {
  const std::string svg = plot_svg(chart_with(Chart::Kind::kLines));
  EXPECT_THAT(svg, HasSubstr(">epoch</text>"));
  EXPECT_THAT(svg, HasSubstr(">validation</text>"));
  EXPECT_EQ(count(svg, "stroke-dasharray"), 2u) << "the line and its mark in the legend";
  EXPECT_EQ(count(svg, "stroke-width=\"1.8\""), 2u);
}

TEST(SvgPlotTest, AreasLieAboveEachOther) {
  const std::string svg = plot_svg(chart_with(Chart::Kind::kStack));
  // 1 + 2 at the left is the highest point, so that the axis ends above 3.
  EXPECT_THAT(svg, HasSubstr(">3.0</text>"));
  EXPECT_EQ(count(svg, " Z\""), 2u);
}

TEST(SvgPlotTest, BarsHaveTheNamesOfTheirRuns) {
  Chart chart = chart_with(Chart::Kind::kBars);
  chart.categories = {"first", "second"};
  const std::string svg = plot_svg(chart);
  EXPECT_THAT(svg, HasSubstr(">first</text>"));
  EXPECT_EQ(count(svg, "<rect x="), 4u);
}

TEST(SvgPlotTest, NamesAreEscapedAndCutAtCharacters) {
  Chart chart = chart_with(Chart::Kind::kLines);
  chart.title = "a<b>&\"\x01";
  chart.series[0].label = std::string(39, 'x') + "é and more";
  const std::string svg = plot_svg(chart);
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;\uFFFD"));
  EXPECT_THAT(svg, HasSubstr(">" + std::string(39, 'x') + "…</text>"));
  EXPECT_THAT(svg, Not(HasSubstr("nan")));
}

TEST(SvgPlotTest, AChartWithoutPointsIsStillAPicture) {
  EXPECT_THAT(plot_svg({.id = "x", .title = "x", .y_label = "y"}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace lockstep::report
