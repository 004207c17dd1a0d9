#include "launcher/agent/worker_group.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temporary_folder.h"

namespace lockstep::launcher {
namespace {

TEST(MemoryKillsTest, ReadsTheKernelsCount) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "vmstat";
  std::ofstream(file) << "nr_free_pages 900\noom_kill 17\noom_kill_disable 3\n";
  EXPECT_EQ(count_memory_kills(file), 17);
}

TEST(MemoryKillsTest, AKernelThatDoesNotTellHasNone) {
  const test::TemporaryFolder folder;
  const std::string file = folder.path() / "vmstat";
  std::ofstream(file) << "nr_free_pages 900\nnr_shadow many\noom_kill 17\n";
  EXPECT_EQ(count_memory_kills(file), 0);
  EXPECT_EQ(count_memory_kills(folder.path() / "none"), 0);
}

TEST(MemoryKillsTest, ThisKernelTells) {
  std::ifstream vmstat("/proc/vmstat");
  bool told = false;
  for (std::string name; vmstat >> name;) told |= name == "oom_kill";
  EXPECT_TRUE(told);
  EXPECT_GE(count_memory_kills(), 0);
}

}  // namespace
}  // namespace lockstep::launcher
