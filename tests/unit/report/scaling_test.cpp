#include "report/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/json.h>

#include <fstream>
#include <iterator>

#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

ScalingRow row_of(int ranks, int cpus, double speed) {
  ScalingRow row;
  row.ranks = ranks;
  row.cpus_per_rank = cpus;
  row.samples_per_s = speed;
  row.seconds = 1;
  return row;
}

TEST(ScalingTest, RowsAreComparedByRanksWithAsManyCpusEach) {
  std::vector<ScalingRow> rows = {row_of(1, 2, 180), row_of(1, 1, 100), row_of(4, 1, 300), row_of(2, 2, 270),
                                  row_of(2, 4, 0)};
  rows[4].failure = "failed, exit code 3";
  compare_rows(rows);
  EXPECT_DOUBLE_EQ(rows[0].speed_up, 1) << "more CPUs for the same rank are another setting";
  EXPECT_DOUBLE_EQ(rows[2].speed_up, 3);
  EXPECT_DOUBLE_EQ(rows[2].efficiency, 0.75);
  EXPECT_DOUBLE_EQ(rows[3].speed_up, 1.5);
  EXPECT_DOUBLE_EQ(rows[3].efficiency, 0.75);
  EXPECT_EQ(rows[4].speed_up, 0);
}

// Sigma2's numbers of one and of four GPUs: by duration 14.45 times as fast and 361 %, because the settings
// differ (batch 32 and 256 per GPU, fp32 and fp16, 0 and 8 workers), which here are the CPUs of a rank.
TEST(ScalingTest, DurationsOfDifferentSettingsLookLikeMoreThanPerfectScaling) {
  std::vector<ScalingRow> rows = {row_of(1, 1, 2598.388), row_of(4, 8, 36926.594)};
  rows[0].seconds = 1923.655;
  rows[1].seconds = 133.107;
  compare_rows(rows);
  EXPECT_NEAR(rows[1].page_speed_up, 14.45, 0.005);
  EXPECT_NEAR(rows[1].page_efficiency, 3.61, 0.005);
  EXPECT_DOUBLE_EQ(rows[1].speed_up, 1) << "nothing to compare it with";
  EXPECT_DOUBLE_EQ(rows[1].efficiency, 1);
}

TEST(ScalingTest, NodesAndGpusAreInTheLabel) {
  ScalingRow row = row_of(4, 2, 1);
  EXPECT_EQ(row.label(), "4 ranks, 2 CPUs each");
  row.nodes = 2;
  row.one_gpu_each = true;
  EXPECT_EQ(row.label(), "2 nodes, 4 ranks, 1 GPU and 2 CPUs each");
}

ScalingRow row_of_nodes(int nodes, int ranks_each, double speed) {
  ScalingRow row = row_of(nodes * ranks_each, 1, speed);
  row.nodes = nodes;
  return row;
}

// Two ranks of one node and one rank on each of two nodes are two runs.
TEST(ScalingTest, RunsWithAsManyRanksOnOtherNodesAreOtherLines) {
  Scaling scaling{.command = {"x"},
                  .host = "h",
                  .cpus = 2,
                  .rows = {row_of_nodes(1, 1, 100), row_of_nodes(1, 2, 190), row_of_nodes(2, 1, 170),
                           row_of_nodes(2, 2, 300)}};
  compare_rows(scaling.rows);
  const std::vector<Chart> charts = scaling_charts(scaling);
  ASSERT_EQ(charts.size(), 2u);
  ASSERT_EQ(charts[0].series.size(), 2u);
  EXPECT_EQ(charts[0].series[0].label, "1 node, 1 CPU per rank");
  EXPECT_THAT(charts[0].series[0].points, ElementsAre(Point{1, 100}, Point{2, 190}));
  EXPECT_EQ(charts[0].series[1].label, "2 nodes, 1 CPU per rank");
  EXPECT_THAT(charts[0].series[1].points, ElementsAre(Point{2, 170}, Point{4, 300}));
  ASSERT_EQ(charts[1].series.size(), 3u) << "and the ideal";
  EXPECT_THAT(charts[1].series[0].points, ElementsAre(Point{1, 1}, Point{2, 1.9}));
  EXPECT_THAT(charts[1].series[1].points, ElementsAre(Point{2, 1.7}, Point{4, 3}));
}

// A study over nodes alone is one line, not a point for each number of nodes.
TEST(ScalingTest, RunsWithAsManyRanksOnEachNodeAreALine) {
  const Scaling scaling{.command = {"x"},
                        .host = "h",
                        .cpus = 2,
                        .rows = {row_of_nodes(1, 4, 400), row_of_nodes(2, 4, 780), row_of_nodes(4, 4, 1500)}};
  const std::vector<Chart> charts = scaling_charts(scaling);
  ASSERT_EQ(charts.size(), 1u);
  ASSERT_EQ(charts[0].series.size(), 1u);
  EXPECT_EQ(charts[0].series[0].label, "4 ranks per node, 1 CPU per rank");
  EXPECT_THAT(charts[0].series[0].points, ElementsAre(Point{4, 400}, Point{8, 780}, Point{16, 1500}));
}

TEST(ScalingTest, LossAndAccuracyAreDrawnOverEpochs) {
  test::RunFiles files;
  files.write("metrics.csv", "step,epoch,train_loss,val_accuracy\n10,1,0.5,0.8\n20,2,0.25,0.9\n");
  Scaling scaling{.command = {"x"}, .host = "h", .cpus = 2, .rows = {row_of(1, 1, 100)}};
  scaling.rows[0].folder = files.path();
  compare_rows(scaling.rows);
  const std::vector<Chart> charts = scaling_charts(scaling);
  ASSERT_EQ(charts.size(), 4u) << "speed, speed-up, loss, accuracy";
  EXPECT_EQ(charts[2].id, "train-loss-epochs");
  EXPECT_EQ(charts[2].series.at(0).label, "1 rank, 1 CPU");
  EXPECT_THAT(charts[2].series.at(0).points, ElementsAre(Point{1, 0.5}, Point{2, 0.25}));
  EXPECT_EQ(charts[3].id, "val-accuracy-epochs");
}

TEST(ScalingTest, WithoutARunThatWentWellNothingIsCompared) {
  std::vector<ScalingRow> rows = {row_of(1, 1, 0)};
  rows[0].failure = "failed";
  compare_rows(rows);
  EXPECT_EQ(rows[0].efficiency, 0);
  EXPECT_THAT(scaling_charts({.command = {"x"}, .host = "h", .cpus = 2, .rows = rows}), IsEmpty());
}

TEST(ScalingTest, TableAndJsonHaveEveryRow) {
  Scaling scaling{.command = {"./train", "--lr"},
                  .host = "node1",
                  .cpus = 4,
                  .rows = {row_of(1, 1, 100), row_of(2, 1, 190)}};
  scaling.rows[0].final_metrics["train_loss"] = 0.25;
  scaling.rows[1].failure = "failed, exit code 3: out of memory";
  compare_rows(scaling.rows);
  const std::string table = scaling_table(scaling);
  EXPECT_THAT(
      table,
      HasSubstr(
          "     1     1             1         100      1.00        100%       1.0     1.00, 100%  train_loss "
          "0.25\n"));
  EXPECT_THAT(table, HasSubstr("     1     2             1  failed, exit code 3: out of memory\n"));
  const Json json = scaling_json(scaling);
  EXPECT_EQ(json["rows"][0]["final_metrics"]["train_loss"], 0.25);
  EXPECT_EQ(json["rows"][1]["failure"], "failed, exit code 3: out of memory");
  EXPECT_FALSE(json["rows"][1].contains("speed_up"));
}

TEST(ScalingTest, ARowIsMeasuredByItsRun) {
  test::RunFiles files;
  ScalingRow row = row_of(1, 1, 0);
  row.folder = files.path();
  measure_row(row);
  EXPECT_EQ(row.failure, "the program left no run in " + files.path().string());
  row.failure.clear();
  files.write("metrics.csv",
              "step,train_loss,samples_per_s,time_data_s\n1,0.5,10,1\n2,0.4,100,1\n3,0.3,110,1\n");
  measure_row(row);
  EXPECT_EQ(row.failure, "");
  EXPECT_EQ(row.samples_per_s, 100);
  EXPECT_EQ(row.final_metrics["train_loss"], 0.3);
  EXPECT_EQ(row.final_metrics.size(), 3u) << "what the run wrote, not what was made of it";
}

TEST(ScalingTest, ThePageShowsSpeedAndFailures) {
  test::RunFiles files;
  files.write("metrics.csv", "step,train_loss,samples_per_s\n1,0.5,10\n2,0.4,100\n");
  Scaling scaling{.command = {"./<train>"},
                  .host = "node1",
                  .cpus = 4,
                  .rows = {row_of(1, 1, 100), row_of(2, 1, 190), row_of(8, 1, 0)}};
  scaling.rows[0].folder = scaling.rows[1].folder = files.path();
  scaling.rows[2].failure = "no <room>";
  compare_rows(scaling.rows);
  const std::vector<Chart> charts = scaling_charts(scaling);
  ASSERT_EQ(charts.size(), 2u);
  EXPECT_THAT(charts[0].series.at(0).points, ElementsAre(Point{1, 100}, Point{2, 190}));
  EXPECT_EQ(charts[1].series.back().label, "ideal");
  EXPECT_THAT(charts[1].series.back().points, ElementsAre(Point{1, 1}, Point{2, 2}));
  write_scaling_report(scaling, files.path() / "report.html");
  std::ifstream file(files.path() / "report.html");
  const std::string page(std::istreambuf_iterator<char>(file), {});
  EXPECT_THAT(page, HasSubstr("./&lt;train&gt; on node1, 4 CPUs"));
  EXPECT_THAT(page, HasSubstr("no &lt;room&gt;"));
  EXPECT_THAT(page, HasSubstr("\"id\":\"speed-ranks\""));
  EXPECT_THAT(page, HasSubstr("1 rank, 1 CPU, training"));
}

}  // namespace
}  // namespace lockstep::report
