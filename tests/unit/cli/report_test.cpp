#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include <filesystem>
#include <fstream>
#include <vector>

#include "cli/commands.h"
#include "support/temporary_folder.h"

namespace lockstep::cli {
namespace {

using testing::HasSubstr;

// What the command prints, or the error's text.
std::string report_says(const std::vector<std::string>& words) {
  std::vector<const char*> arguments = {"lockstep report"};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  testing::internal::CaptureStdout();
  try {
    run_report(static_cast<int>(arguments.size()), arguments.data());
    return testing::internal::GetCapturedStdout();
  } catch (const std::exception& error) {
    return testing::internal::GetCapturedStdout() + error.what();
  }
}

TEST(ReportCommandTest, WritesIntoTheRunUnlessToldOtherwise) {
  const test::TemporaryFolder folder;
  std::ofstream(folder.path() / "metrics.csv") << "step,train_loss\n1,0.5\n2,0.25\n";
  EXPECT_EQ(report_says({folder.path()}), "Report: " + (folder.path() / "report.html").string() + "\n");
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "report.html"));
  const std::string output =
      report_says({folder.path(), "-o", folder.path() / "x.html", "--svg", folder.path() / "svg"});
  EXPECT_THAT(output, HasSubstr("Chart: " + (folder.path() / "svg/loss.svg").string() + "\n"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "x.html"));
  EXPECT_TRUE(std::filesystem::exists(folder.path() / "svg/loss.svg"));
}

TEST(ReportCommandTest, ErrorsSayWhatToDo) {
  EXPECT_THAT(report_says({}), HasSubstr("RUN is required; lockstep report --help lists the options"));
  EXPECT_THAT(report_says({"--bogus", "x"}), HasSubstr("--bogus"));
  EXPECT_THAT(report_says({"/nowhere"}),
              HasSubstr("there is no such folder, give the folder of a run: '/nowhere'"));
  EXPECT_THAT(report_says({"--help"}), HasSubstr("--svg"));
  EXPECT_THAT(report_says({"x", "--follow", "--svg", "y"}), HasSubstr("leave out --output and --svg"));
}

}  // namespace
}  // namespace lockstep::cli
