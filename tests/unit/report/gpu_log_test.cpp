#include "report/gpu_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "unit/report/run_files.h"

namespace lockstep::report {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

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
