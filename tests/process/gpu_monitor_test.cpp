#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::HasSubstr;
using testing::MatchesRegex;

std::vector<std::string> read_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

class GpuMonitorTest : public testing::Test {
 protected:
  // A library of this name in a folder that comes before the system's.
  Process start(const std::filesystem::path& library_folder) const {
    const char* before = std::getenv("LD_LIBRARY_PATH");
    const std::string path = library_folder.string() + (before != nullptr ? ":" + std::string(before) : "");
    return Process({program_path("test/gpu_monitor"), log().string()}, {{"LD_LIBRARY_PATH", path}});
  }

  static int end(Process& process) {
    process.close_input();
    const auto status = process.wait(seconds(60));
    return status ? status->code : -1;
  }

  void wait_for_lines(size_t count) const {
    const auto deadline = steady_clock::now() + seconds(60);
    while (read_lines(log()).size() < count && steady_clock::now() < deadline) std::this_thread::yield();
  }

  std::filesystem::path log() const { return folder_.path() / "gpu.csv"; }
  std::filesystem::path fake() const {
    return std::filesystem::path(program_path("test/gpu_monitor")).parent_path() / "nvml";
  }

  TemporaryFolder folder_;
};

constexpr char kHeading[] =
    "timestamp, index, name, utilization.gpu [%], utilization.memory [%], memory.total [MiB], memory.used "
    "[MiB]";

TEST_F(GpuMonitorTest, WritesWhatNvidiaSmiWrites) {
  Process monitor = start(fake());
  wait_for_lines(5);
  EXPECT_EQ(end(monitor), 0) << monitor.errors();
  EXPECT_EQ(monitor.errors(), "");
  const std::vector<std::string> lines = read_lines(log());
  ASSERT_GE(lines.size(), 5u);
  EXPECT_EQ(lines[0], kHeading);
  const std::string time =
      "20[0-9][0-9]/[0-9][0-9]/[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9]";
  for (size_t i = 1; i + 1 < lines.size(); i += 2) {
    EXPECT_THAT(lines[i], MatchesRegex(time + ", 0, NVIDIA Test 0, 97 %, 41 %, 143771 MiB, 4660 MiB"));
    EXPECT_THAT(lines[i + 1], MatchesRegex(time + ", 2, NVIDIA Test 2, 99 %, 41 %, 143771 MiB, 4660 MiB"))
        << "GPU 1 does not answer";
  }
}

TEST_F(GpuMonitorTest, ContinuesTheFileOfARunThatGoesOn) {
  Process first = start(fake());
  wait_for_lines(3);
  EXPECT_EQ(end(first), 0);
  const size_t before = read_lines(log()).size();
  Process second = start(fake());
  wait_for_lines(before + 2);
  EXPECT_EQ(end(second), 0);
  const std::vector<std::string> lines = read_lines(log());
  EXPECT_GE(lines.size(), before + 2);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), kHeading), 1);
}

TEST_F(GpuMonitorTest, WithoutTheLibraryNothingIsWrittenAndItIsSaidOnce) {
  std::ofstream(folder_.path() / "libnvidia-ml.so.1") << "no library";
  Process monitor = start(folder_.path());
  EXPECT_EQ(end(monitor), 0);
  EXPECT_THAT(monitor.errors(), HasSubstr("GPUs are not monitored"));
  EXPECT_THAT(monitor.errors(), HasSubstr("libnvidia-ml.so.1"));
  EXPECT_EQ(std::count(monitor.errors().begin(), monitor.errors().end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(log()));
}

}  // namespace
}  // namespace lockstep::test
