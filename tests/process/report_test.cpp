// `lockstep report` and `lockstep bench scaling` on trainings that really ran.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using std::chrono::seconds;
using testing::HasSubstr;

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class ReportProcessTest : public testing::Test {
 protected:
  // Its standard output; a status other than the expected one fails the test.
  std::string run(const std::vector<std::string>& arguments, int expected_code = 0) {
    Process process(arguments, {{"OMP_NUM_THREADS", std::nullopt}});
    const auto status = process.wait(seconds(120));
    EXPECT_TRUE(status && status->code == expected_code) << process.output() << process.errors();
    return process.output();
  }

  void train(const std::string& name, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {
        program_path("sine"), "--compute_setup",    "cpu", "--max_iter", "10",
        "--log_folder",       folder_.path() / name};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    run(arguments);
  }

  TemporaryFolder folder_;
};

TEST_F(ReportProcessTest, ATrainingOfTwoRanksHasAPage) {
  train("two", {"--nprocs", "2", "--seed", "7"});
  const std::filesystem::path run_folder = folder_.path() / "two";
  EXPECT_EQ(run({program_path("lockstep"), "report", run_folder}),
            "Report: " + (run_folder / "report.html").string() + "\n");
  const std::string page = read_text(run_folder / "report.html");
  EXPECT_THAT(page, HasSubstr("<th>seed</th><td><code>7</code></td><td class=\"usual\"><code>0</code></td>"));
  EXPECT_THAT(page, HasSubstr("<b>1</b>cpu")) << "the map of ranks";
  EXPECT_THAT(page, HasSubstr("Collectives over <code>shm</code>"));
  EXPECT_THAT(page, HasSubstr("torch::nn::Linear"));
  for (const char* chart : {"loss", "learning-rate", "samples-per-s", "step-time"}) {
    EXPECT_THAT(page, HasSubstr("data-chart=\"" + std::string(chart) + "\""));
  }
  const json ranks = json::parse(read_text(run_folder / "ranks.json"));
  EXPECT_EQ(ranks["ranks"].size(), 2u);
  EXPECT_EQ(ranks["ranks"][1]["local_rank"], 1);
}

TEST_F(ReportProcessTest, FollowsARunUntilCtrlC) {
  train("run", {"--log_every", "1"});
  EXPECT_THAT(read_text(folder_.path() / "run/metrics.csv"), HasSubstr("step_loss"));
  Process process({program_path("lockstep"), "report", "--follow", folder_.path() / "run"});
  const auto line = process.read_line(seconds(60));
  ASSERT_TRUE(line && line->starts_with("Report: http://127.0.0.1:")) << process.errors();
  const std::string page = run({"python3", "-c",
                                "import sys, urllib.request\n"
                                "print(urllib.request.urlopen(sys.argv[1]).read().decode())\n",
                                line->substr(8)});
  EXPECT_THAT(page, HasSubstr("training steps"));
  EXPECT_THAT(page, HasSubstr("id=\"live\""));
  process.signal(SIGINT);
  const auto status = process.wait(seconds(60));
  EXPECT_TRUE(status && status->code == 0) << process.errors();
  EXPECT_EQ(process.errors(), "");
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "run/report.html"));
}

TEST_F(ReportProcessTest, PicturesAreXml) {
  train("a<b>&", {});
  train("other", {"--seed", "1"});
  run({program_path("lockstep"), "report", folder_.path() / "a<b>&", folder_.path() / "other", "--output",
       folder_.path() / "both.html", "--svg", folder_.path() / "svg"});
  const std::string parsed =
      run({"python3", "-c",
           "import sys, pathlib, xml.etree.ElementTree as tree\n"
           "for path in sorted(pathlib.Path(sys.argv[1]).iterdir()):\n"
           "    root = tree.parse(path).getroot()\n"
           "    print(path.name, root.tag, any('a<b>&' in (t.text or '') for t in root.iter()))\n",
           folder_.path() / "svg"});
  EXPECT_EQ(parsed,
            "grad-norm.svg {http://www.w3.org/2000/svg}svg True\n"
            "learning-rate.svg {http://www.w3.org/2000/svg}svg True\n"
            "loss.svg {http://www.w3.org/2000/svg}svg True\n"
            "memory-mib.svg {http://www.w3.org/2000/svg}svg True\n"
            "samples-per-s.svg {http://www.w3.org/2000/svg}svg True\n"
            "step-time.svg {http://www.w3.org/2000/svg}svg True\n");
}

TEST_F(ReportProcessTest, AStudyHasARowForEveryCombination) {
  const std::filesystem::path study = folder_.path() / "study";
  const std::string output = run({program_path("lockstep"), "bench", "scaling", "--ranks", "1,2",
                                  "--cpus-per-rank", "1", "--oversubscribe", "--output", study, "--",
                                  program_path("sine"), "--max_iter", "10", "--compute_setup", "cpu"});
  EXPECT_THAT(output, HasSubstr("1 rank, 1 CPU: "));
  EXPECT_THAT(output, HasSubstr("Report: " + (study / "report.html").string()));
  const json rows = json::parse(read_text(study / "scaling.json"))["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["speed_up"], 1.0);
  EXPECT_EQ(rows[1]["ranks"], 2);
  EXPECT_GT(rows[1]["samples_per_s"].get<double>(), 0);
  EXPECT_EQ(json::parse(read_text(study / "ranks-2-cpus-1/ranks.json"))["ranks"].size(), 2u);
  EXPECT_THAT(read_text(study / "report.html"), HasSubstr("Speed against ranks"));
  EXPECT_TRUE(std::filesystem::exists(study / "speed-ranks.svg"));
}

TEST_F(ReportProcessTest, ARunThatFailsIsARowThatSaysSo) {
  const std::filesystem::path study = folder_.path() / "study";
  const std::string output = run({program_path("lockstep"), "bench", "scaling", "--ranks", "1", "--output",
                                  study, "--", program_path("sine"), "--backend", "pigeon"},
                                 /*expected_code=*/1);
  EXPECT_THAT(output, HasSubstr("failed, exit code 2: "));
  const json rows = json::parse(read_text(study / "scaling.json"))["rows"];
  EXPECT_THAT(rows[0]["failure"].get<std::string>(), HasSubstr("pigeon"));
}

}  // namespace
}  // namespace lockstep::test
