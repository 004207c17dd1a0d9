#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <optional>
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
  Process start(const std::filesystem::path& library_folder, const std::string& uuid = "GPU-test-0",
                const std::optional<std::string>& sees = std::nullopt) const {
    const char* before = std::getenv("LD_LIBRARY_PATH");
    const std::string path = library_folder.string() + (before != nullptr ? ":" + std::string(before) : "");
    return Process({program_path("test/gpu_monitor"), log().string(), uuid},
                   {{"LD_LIBRARY_PATH", path}, {"FAKE_NVML_SEES", sees}});
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
    "[MiB], power.draw [W], temperature.gpu";

constexpr char kTime[] =
    "20[0-9][0-9]/[0-9][0-9]/[0-9][0-9] [0-9][0-9]:[0-9][0-9]:[0-9][0-9]\\.[0-9][0-9][0-9]";

TEST_F(GpuMonitorTest, WritesWhatNvidiaSmiWritesOfTheGpuOfThisUuid) {
  Process monitor = start(fake(), "GPU-test-2");
  wait_for_lines(5);
  EXPECT_EQ(end(monitor), 0) << monitor.errors();
  EXPECT_EQ(monitor.errors(), "");
  const std::vector<std::string> lines = read_lines(log());
  ASSERT_GE(lines.size(), 5u);
  EXPECT_EQ(lines[0], kHeading);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i],
                MatchesRegex(std::string(kTime) +
                             ", 2, NVIDIA Test 2, 99 %, 41 %, 143771 MiB, 4660 MiB, 612\\.[0-9][0-9] W, "
                             "71"));
  }
}

TEST_F(GpuMonitorTest, RanksThatSeeTheirOwnGpuAloneAddToOneFile) {
  Process first = start(fake(), "GPU-test-0", "GPU-test-0");
  ASSERT_TRUE(first.read_line(seconds(60)));  // it has made the file
  Process second = start(fake(), "GPU-test-2", "GPU-test-2");
  const auto count = [this](const std::string& index) {
    const std::vector<std::string> lines = read_lines(log());
    return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) {
      return line.find(", " + index + ", NVIDIA Test " + index) != std::string::npos;
    });
  };
  const auto deadline = steady_clock::now() + seconds(60);
  while ((count("0") < 3 || count("2") < 3) && steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_EQ(end(first), 0) << first.errors();
  EXPECT_EQ(end(second), 0) << second.errors();
  EXPECT_GE(count("0"), 3);
  EXPECT_GE(count("2"), 3);
  const std::vector<std::string> lines = read_lines(log());
  EXPECT_EQ(lines[0], kHeading);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_THAT(lines[i], MatchesRegex(std::string(kTime) + ", [02], NVIDIA Test [02], 9[79] %, 41 %, .*"));
    const bool is_first = lines[i].find(", 0, NVIDIA Test 0") != std::string::npos;
    EXPECT_THAT(lines[i], testing::EndsWith(is_first ? "4660 MiB, [N/A], 71" : " W, 71"));
  }
}

TEST_F(GpuMonitorTest, AGpuThatDoesNotAnswerLeavesTheHeadingAlone) {
  Process monitor = start(fake(), "GPU-test-1");
  ASSERT_TRUE(monitor.read_line(seconds(60)));
  EXPECT_EQ(end(monitor), 0) << monitor.errors();
  EXPECT_EQ(read_lines(log()), std::vector<std::string>{kHeading});
}

TEST_F(GpuMonitorTest, AGpuThatIsNotSeenIsSaidOnce) {
  Process monitor = start(fake(), "GPU-test-2", "GPU-test-0");
  EXPECT_EQ(end(monitor), 0);
  EXPECT_THAT(monitor.errors(), HasSubstr("the GPU GPU-test-2 is not monitored"));
  EXPECT_EQ(std::count(monitor.errors().begin(), monitor.errors().end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(log()));
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
  EXPECT_THAT(monitor.errors(), HasSubstr("the GPU GPU-test-0 is not monitored"));
  EXPECT_THAT(monitor.errors(), HasSubstr("libnvidia-ml.so.1"));
  EXPECT_EQ(std::count(monitor.errors().begin(), monitor.errors().end(), '\n'), 1);
  EXPECT_FALSE(std::filesystem::exists(log()));
}

}  // namespace
}  // namespace lockstep::test
