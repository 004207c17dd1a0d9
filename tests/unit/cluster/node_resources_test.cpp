#include "cluster/node_resources.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "support/temporary_folder.h"

namespace lockstep::cluster {
namespace {

namespace fs = std::filesystem;

// A folder of control groups that the test writes.
class CgroupTest : public testing::Test {
 protected:
  CgroupTest() {
    std::string name = testing::TempDir() + "cgroup-XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~CgroupTest() override { fs::remove_all(folder_); }

  void write(const std::string& path, const std::string& text) {
    fs::create_directories((folder_ / path).parent_path());
    std::ofstream(folder_ / path) << text << "\n";
  }

  std::optional<double> quota() const {
    return cpu_quota({.membership = folder_ / "membership", .root = folder_ / "root"});
  }

 private:
  fs::path folder_;
};

TEST_F(CgroupTest, Version2TakesTheLeastQuotaUpToTheRoot) {
  write("membership", "0::/job/task");
  write("root/job/task/cpu.max", "400000 100000");
  write("root/job/cpu.max", "150000 100000");
  EXPECT_EQ(quota(), 1.5);
}

TEST_F(CgroupTest, Version2InsideAContainerIsTheRoot) {
  write("membership", "0::/");
  write("root/cpu.max", "200000 100000");
  EXPECT_EQ(quota(), 2.0);
}

TEST_F(CgroupTest, Version2WithoutLimit) {
  write("membership", "0::/job");
  write("root/job/cpu.max", "max 100000");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CgroupTest, Version1ReadsTheCpuController) {
  write("membership", "7:memory:/job\n4:cpu,cpuacct:/job");
  write("root/cpu,cpuacct/job/cpu.cfs_quota_us", "300000");
  write("root/cpu,cpuacct/job/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), 3.0);
}

TEST_F(CgroupTest, Version1InAFolderOfOneName) {
  write("membership", "4:cpu,cpuacct:/docker/abc");
  write("root/cpu/cpu.cfs_quota_us", "50000");
  write("root/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), 0.5);
}

TEST_F(CgroupTest, Version1WithoutLimit) {
  write("membership", "4:cpu,cpuacct:/");
  write("root/cpu,cpuacct/cpu.cfs_quota_us", "-1");
  write("root/cpu,cpuacct/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota(), std::nullopt);
}

TEST_F(CgroupTest, NoControlGroups) { EXPECT_EQ(quota(), std::nullopt); }

TEST(TopologyTest, AffinityFollowsTheThreadsMask) {
  const std::vector<int> all = affinity_cpus();
  ASSERT_FALSE(all.empty());
  std::vector<int> bound;
  std::thread([&] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(static_cast<size_t>(all.back()), &mask);
    ASSERT_EQ(::sched_setaffinity(0, sizeof mask, &mask), 0);
    bound = affinity_cpus();
  }).join();
  EXPECT_THAT(bound, testing::ElementsAre(all.back()));
}

TEST(TopologyTest, HostNameIsTheKernels) {
  std::ifstream file("/proc/sys/kernel/hostname");
  std::string expected;
  std::getline(file, expected);
  EXPECT_EQ(host_name(), expected);
}

TEST(TopologyTest, QuotaLimitsTheMask) {
  EXPECT_EQ(usable_cpus(8, std::nullopt), 8);
  EXPECT_EQ(usable_cpus(8, 2.9), 2);
  EXPECT_EQ(usable_cpus(8, 0.5), 1);
  EXPECT_EQ(usable_cpus(8, 64.0), 8);
}

TEST(TopologyTest, ThreadsAreSharedByLocalRanks) {
  EXPECT_EQ(threads_per_rank(8, 2, false), 4);
  EXPECT_EQ(threads_per_rank(8, 3, false), 2);
  EXPECT_EQ(threads_per_rank(2, 4, false), 1);
  EXPECT_EQ(threads_per_rank(8, 4, true), 8);
}

TEST(TopologyTest, TellsCpusOfOnesOwn) {
  EXPECT_FALSE(has_own_cpus({}, 2));
  EXPECT_TRUE(has_own_cpus({{"OMPI_MCA_orte_bound_at_launch", "1"}}, 2));
  EXPECT_TRUE(has_own_cpus({{"SLURM_CPU_BIND_LIST", "0x3,0xC"}}, 2));
  EXPECT_FALSE(has_own_cpus({{"SLURM_CPU_BIND_LIST", "0x3"}}, 2)) << "one mask for both tasks";
  EXPECT_FALSE(has_own_cpus({{"SLURM_CPU_BIND_LIST", "0x3,0x3"}}, 2)) << "the same mask twice";
}

using testing::HasSubstr;

class MemoryRoomTest : public testing::Test {
 protected:
  void write(const std::string& file, const std::string& text) {
    const std::filesystem::path path = folder_.path() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
  }
  std::optional<MemoryRoom> room() const {
    return group_memory_room({(folder_.path() / "membership").string(), (folder_.path() / "root").string()});
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(MemoryRoomTest, Version2TakesTheTightestGroupOnTheWayUp) {
  write("membership", "0::/job/step\n");
  write("root/job/step/memory.max", "max\n");
  write("root/job/step/memory.current", "100\n");
  write("root/job/memory.max", "1000\n");
  write("root/job/memory.current", "700\n");
  write("root/job/memory.stat", "anon 500\ninactive_file 200\n");
  const auto found = room();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 500);
  EXPECT_EQ(found->limit_bytes, 1000);
  EXPECT_THAT(found->limit, HasSubstr("root/job"));
  EXPECT_TRUE(found->is_shared);
}

TEST_F(MemoryRoomTest, Version1) {
  write("membership", "4:memory:/job\n1:cpu:/\n0::/\n");
  write("root/memory/job/memory.limit_in_bytes", "4096\n");
  write("root/memory/job/memory.usage_in_bytes", "5000\n");
  write("root/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 904\n");
  write("root/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("root/memory/memory.usage_in_bytes", "1\n");
  const auto found = room();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->bytes, 0);
}

TEST_F(MemoryRoomTest, NoLimitIsNoRoomToTell) {
  write("membership", "0::/\n");
  EXPECT_FALSE(room());
  write("root/memory.max", "max\n");
  write("root/memory.current", "5\n");
  EXPECT_FALSE(room());
}

// In a child: a limit cannot be raised again.
TEST(ProcessMemoryRoom, IsWhatTheLimitLeaves) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const rlimit limit{rlim_t{1} << 40, rlim_t{1} << 40};
    if (::setrlimit(RLIMIT_DATA, &limit) != 0) ::_exit(2);
    const auto found = process_memory_room();
    const bool right = found && found->limit == "RLIMIT_DATA" && found->limit_bytes == int64_t{1} << 40 &&
                       found->bytes < int64_t{1} << 40 && found->bytes > int64_t{1} << 39 &&
                       !found->is_shared;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(RequireMemoryForTest, RefusesRanksThatCannotFitWithTheNumbers) {
  require_memory_for(1);
  EXPECT_THAT([] { require_memory_for(1 << 30); },
              testing::ThrowsMessage<ConfigError>(
                  testing::AllOf(HasSubstr("1073741824 ranks on this host need "), HasSubstr(" each, and "),
                                 HasSubstr(" left: start fewer (nprocs)"))));
}

}  // namespace
}  // namespace lockstep::cluster
