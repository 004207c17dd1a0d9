#include "report/run_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/track.h>

#include <chrono>
#include <cmath>

#include "track/gpu_monitor.h"
#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class MetricsFileTest : public testing::Test {
 protected:
  bool read_csv(const std::string& content) {
    files_.write("metrics.csv", content);
    return read_metrics_csv(files_.path() / "metrics.csv", table_, remarks_);
  }
  bool read_jsonl(const std::string& content) {
    files_.write("metrics.jsonl", content);
    return read_metrics_jsonl(files_.path() / "metrics.jsonl", table_, remarks_);
  }

  test::RunFiles files_;
  ThinnedTable table_;
  std::vector<std::string> remarks_;
};

TEST_F(MetricsFileTest, ReadsRowsWithGaps) {
  EXPECT_TRUE(read_csv("step,train_loss,\"odd,\"\"name\"\"\"\n1,0.5,\n2,,7\n3,0.25,-inf\n"));
  EXPECT_THAT(table_.points("train_loss"), ElementsAre(Point{1, 0.5}, Point{3, 0.25}));
  EXPECT_THAT(table_.points("odd,\"name\""), ElementsAre(Point{2, 7}));
  EXPECT_EQ(table_.totals("odd,\"name\"")->not_finite, 1);
  EXPECT_THAT(remarks_, IsEmpty());
}

// Both files as our own trackers write them, with values that JSON does not have.
TEST_F(MetricsFileTest, ReadsWhatTheTrackersWrite) {
  TrackerOptions options;
  options.folder = files_.path();
  for (const char* name : {"csv", "jsonl"}) {
    const auto tracker = make_tracker(name, options);
    const std::vector<Scalar> first = {{"train_loss", 0.5}, {"nothing", std::nan("")}};
    const std::vector<Scalar> second = {{"train_loss", 1e-300}, {"val_loss", 0.125}};
    tracker->write_scalars(first, 10);
    tracker->write_scalars(second, 20);
    tracker->close(RunStatus::kFinished);
  }
  for (const bool csv : {true, false}) {
    ThinnedTable table;
    EXPECT_TRUE(csv ? read_metrics_csv(files_.path() / "metrics.csv", table, remarks_)
                    : read_metrics_jsonl(files_.path() / "metrics.jsonl", table, remarks_));
    EXPECT_THAT(table.points("train_loss"), ElementsAre(Point{10, 0.5}, Point{20, 1e-300})) << csv;
    EXPECT_THAT(table.points("val_loss"), ElementsAre(Point{20, 0.125})) << csv;
    EXPECT_EQ(table.all_totals("nothing")->not_finite, 1) << csv;
  }
  EXPECT_THAT(remarks_, IsEmpty());
}

TEST_F(MetricsFileTest, TimesAreAlsoGivenAStep) {
  EXPECT_TRUE(read_csv("step,time_data_s\n10,0.5\n30,0.5\n30,9\n"));
  EXPECT_THAT(table_.points(per_step_column("data")), ElementsAre(Point{10, 50}, Point{30, 25}));
}

TEST_F(MetricsFileTest, ALineThatWasBeingWrittenIsLeftOut) {
  EXPECT_TRUE(read_csv("step,loss\n1,0.5\n2,0.2"));
  EXPECT_THAT(table_.points("loss"), ElementsAre(Point{1, 0.5}));
  EXPECT_THAT(remarks_, ElementsAre("metrics.csv: the last line is not whole and was left out"));
}

TEST_F(MetricsFileTest, LinesThatAreNoRowsAreLeftOutAndSaid) {
  EXPECT_TRUE(read_csv("step,loss\n1,0.5\nhello\n2,x\n3,1,2,3\n4,0.1\r\n"));
  EXPECT_THAT(table_.points("loss"), testing::Contains(Point{4, 0.1}));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("3 lines were left out that are no row of metrics, the first "
                                              "is line 3")));
}

TEST_F(MetricsFileTest, AForeignFileIsSaid) {
  EXPECT_FALSE(read_csv("name,age\nx,3\n"));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("its first column is not 'step'")));
  EXPECT_FALSE(read_csv(""));
  EXPECT_FALSE(read_metrics_csv(files_.path() / "missing.csv", table_, remarks_));
  EXPECT_FALSE(read_metrics_csv(files_.path(), table_, remarks_)) << "a folder";
}

TEST_F(MetricsFileTest, AGigabyteWithoutALineEndNeedsNoGigabyte) {
  const std::string line(3 * LineReader::kMaxLineBytes, '7');
  EXPECT_TRUE(read_csv("step,loss\n" + line + "\n5,0.5\n" + line));
  EXPECT_THAT(table_.points("loss"), ElementsAre(Point{5, 0.5}));
  EXPECT_THAT(remarks_, testing::Contains(HasSubstr("1 line(s) longer than 1048576 bytes")));
}

TEST_F(MetricsFileTest, ColumnsBeyondTheLimitAreSaid) {
  std::string header = "step";
  std::string row = "1";
  for (size_t i = 0; i < kMaxColumns + 7; ++i) {
    header += ",m" + std::to_string(i);
    row += ",1";
  }
  EXPECT_TRUE(read_csv(header + "\n" + row + "\n"));
  EXPECT_EQ(table_.names().size(), kMaxColumns);
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("7 metrics beyond the first 512 were left out")));
}

TEST_F(MetricsFileTest, JsonLinesOfOtherKindsAreNoRows) {
  EXPECT_TRUE(
      read_jsonl("{\"step\":0,\"time\":1.5,\"text\":\"model\",\"content\":\"x\"}\n"
                 "{\"step\":1,\"time\":2.5,\"loss\":0.5,\"odd\":[1]}\n"
                 "{\"step\":1,\"time\":2.5,\"histogram\":\"w\",\"min\":0}\n"
                 "{\"hyperparameters\":{\"lr\":1}}\nnot json\n{\"step\":2,\"ti"));
  EXPECT_EQ(table_.rows(), 1);
  EXPECT_THAT(table_.names(), ElementsAre("loss"));
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("the first is line 5"), HasSubstr("last line is not whole")));
}

class GpuLogTest : public testing::Test {
 protected:
  GpuLog read(const std::string& content) {
    files_.write("gpu.csv", content);
    return read_gpu_log(files_.path() / "gpu.csv", remarks_);
  }

  test::RunFiles files_;
  std::vector<std::string> remarks_;
};

// As nvidia-smi --format=csv prints it.
TEST_F(GpuLogTest, ReadsNvidiaSmi) {
  const GpuLog log = read(
      "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.total [MiB], memory.used "
      "[MiB]\n"
      "2026/11/15 23:59:59.500, 0, NVIDIA H200, 45 %, 20 %, 143360 MiB, 1024 MiB\n"
      "2026/11/15 23:59:59.500, 1, NVIDIA H200, 5 %, 20 %, 143360 MiB, 512 MiB\n"
      "2026/11/16 00:00:01.000, 0, NVIDIA H200, [N/A], 20 %, 143360 MiB, 2048 MiB\n");
  ASSERT_EQ(log.gpus.size(), 2u);
  EXPECT_EQ(log.gpus[0].name, "NVIDIA H200");
  EXPECT_EQ(log.gpus[0].memory_gib, 140);
  EXPECT_THAT(log.table.points(utilization_column("0")), ElementsAre(Point{0, 45}));
  EXPECT_THAT(log.table.points(memory_column("0")), ElementsAre(Point{0, 1}, Point{1.5, 2}));
  EXPECT_THAT(log.table.points(memory_column("1")), ElementsAre(Point{0, 0.5}));
  EXPECT_THAT(remarks_, IsEmpty());
}

// What the monitor writes.
TEST_F(GpuLogTest, ReadsPowerAndTemperature) {
  const std::string monitor = track::gpu_log_header() + "\n";
  const std::chrono::system_clock::time_point now = std::chrono::system_clock::now();
  track::GpuSample sample{
      .index = 3, .name = "A", .total_bytes = 1, .used_bytes = 1, .power_watts = 612.5, .celsius = 71};
  std::string lines = track::gpu_log_line(sample, now) + "\n";
  sample.power_watts = std::nullopt;
  lines += track::gpu_log_line(sample, now + std::chrono::seconds(5)) + "\n";
  const GpuLog log = read(monitor + lines);
  EXPECT_THAT(log.table.points(power_column("3")), ElementsAre(Point{0, 612.5}));
  EXPECT_THAT(log.table.points(temperature_column("3")), ElementsAre(Point{0, 71}, Point{5, 71}));
  EXPECT_THAT(remarks_, IsEmpty());
}

TEST_F(GpuLogTest, ReadsPlainNumbersAndOtherTimes) {
  const GpuLog log = read(
      "timestamp,index,name,utilization.gpu,utilization.memory,memory.total,memory.used\n"
      "2026-11-15T12:00:00,0,\"A, B\",10,1,1024,512\n2026-11-15T12:01:00,0,\"A, B\",20,1,1024,512\n");
  EXPECT_EQ(log.gpus.at(0).name, "A, B");
  EXPECT_THAT(log.table.points(utilization_column("0")), ElementsAre(Point{0, 10}, Point{60, 20}));
  EXPECT_THAT(
      read("timestamp,index,memory.used\n100.5,3,1024\n102.5,3,2048\n").table.points(memory_column("3")),
      ElementsAre(Point{0, 1}, Point{2, 2}));
}

TEST_F(GpuLogTest, SaysWhatCannotBeRead) {
  EXPECT_THAT(read("time,load\n1,2\n").gpus, IsEmpty());
  EXPECT_THAT(remarks_, ElementsAre(HasSubstr("not a log of GPUs, it lacks one of the columns timestamp")));
  remarks_.clear();
  EXPECT_EQ(read("timestamp,index,utilization.gpu\nyesterday,0,5\n1,0,5\n2\n").table.rows(), 1);
  EXPECT_THAT(remarks_, ElementsAre("gpu.csv: 2 line(s) cannot be read"));
}

TEST_F(GpuLogTest, EveryNodeHasALog) {
  const std::string content = "timestamp,index,utilization.gpu\n1,0,5\n";
  files_.write("gpu.csv", content).write("gpu_node10.csv", content).write("gpu_node2.csv", content);
  files_.write("gpu_nodex.csv", content).write("gpu_node3.csv", "timestamp,index,utilization.gpu\n");
  std::vector<int64_t> nodes;
  for (const GpuLog& log : read_gpu_logs(files_.path(), remarks_)) nodes.push_back(log.node);
  EXPECT_THAT(nodes, ElementsAre(0, 2, 10));
}

TEST_F(GpuLogTest, NoFileIsNoGpu) {
  EXPECT_THAT(read_gpu_log(files_.path() / "gpu.csv", remarks_).gpus, IsEmpty());
  EXPECT_THAT(remarks_, IsEmpty());
}

}  // namespace
}  // namespace lockstep::report
