// What `lockstep doctor` and `lockstep bench collectives` print, as text and as JSON.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <torch/version.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <regex>

#include "support/process.h"
#include "support/temporary_folder.h"

namespace lockstep::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::StartsWith;

// Of a program that ends well.
std::string output_of(std::vector<std::string> arguments) {
  Process process(std::move(arguments), {kExcuseMpiLeaks});  // the doctor tries all backends
  const auto status = process.wait(std::chrono::seconds(120));
  EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
  EXPECT_EQ(status.value_or(ExitStatus{}), ExitStatus{.code = 0}) << process.errors();
  return process.output();
}

// Of a program that is used wrongly.
std::string complaint_of(std::vector<std::string> arguments) {
  Process process(std::move(arguments));
  const auto status = process.wait(std::chrono::seconds(120));
  EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
  EXPECT_EQ(status.value_or(ExitStatus{}), ExitStatus{.code = kExitUsage}) << process.errors();
  return process.errors();
}

std::string host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

TEST(Doctor, TellsMachineRanksAndBackendsAsJson) {
  const json report =
      json::parse(output_of({program_path("lockstep"), "run", "-n", "2", "--no-prefix",
                             program_path("lockstep"), "doctor", "--compute_setup", "cpu", "--json"}));
  ASSERT_EQ(report.at("ranks").size(), 2u);
  for (int rank = 0; rank < 2; ++rank) {
    const json& one = report.at("ranks").at(static_cast<size_t>(rank));
    EXPECT_EQ(one.at("map").at("rank"), rank);
    EXPECT_EQ(one.at("map").at("world_size"), 2);
    EXPECT_EQ(one.at("map").at("local_rank"), rank);
    EXPECT_EQ(one.at("map").at("num_nodes"), 1);
    EXPECT_EQ(one.at("self_test"), (json{{"operation", "all_reduce"}, {"backend", "shm"}, {"ok", true}}));
    EXPECT_EQ(one.at("device"), "cpu");
    const json& machine = one.at("machine");
    EXPECT_EQ(machine.at("versions").at("libtorch"), TORCH_VERSION);
    EXPECT_EQ(machine.at("system").at("host"), host());
    EXPECT_GE(machine.at("cpus").at("affinity").size(), 1u);
    EXPECT_TRUE(machine.contains("gpus"));
  }
  for (const char* name : {"shm", "gloo", "fake"}) {
    EXPECT_EQ(report.at("backends").at(name).at("usable"), true) << report.at("backends").dump(2);
  }
  for (const auto& [name, facts] : report.at("backends").items()) {
    EXPECT_FALSE(facts.at("reason").get<std::string>().empty()) << name << " does not say why";
  }
}

TEST(Doctor, TellsTheSameAsText) {
  const std::string text = output_of({program_path("lockstep"), "doctor", "--compute_setup", "cpu"});
  EXPECT_THAT(text, HasSubstr("rank 0 of 1\n"));
  EXPECT_THAT(text, HasSubstr("self_test:\n"));
  EXPECT_TRUE(std::regex_search(text, std::regex("\n    ok +true\n"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\n    world_size +1\n"))) << text;
  EXPECT_TRUE(std::regex_search(text, std::regex("\nbackends:\n(  .*\n)*  gloo   yes  "))) << text;
  EXPECT_THAT(text, HasSubstr(host()));
}

TEST(Doctor, RefusesABackendItDoesNotKnow) {
  EXPECT_THAT(complaint_of({program_path("lockstep"), "doctor", "--backend", "pigeon"}),
              HasSubstr("'pigeon'"));
}

const std::vector<std::string> kBench = {"bench",        "collectives",
                                         "-n",           "2",
                                         "--operations", "all_reduce,broadcast,all_gather,reduce_scatter",
                                         "--sizes",      "4,1K",
                                         "--repeats",    "3"};

std::vector<std::string> bench(std::vector<std::string> more) {
  std::vector<std::string> arguments = {program_path("lockstep")};
  arguments.insert(arguments.end(), kBench.begin(), kBench.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

TEST(BenchCollectives, GivesARowForEachOperationAndSizeAsJson) {
  for (const char* backend : {"shm", "gloo"}) {
    const json result = json::parse(output_of(bench({"--json", "--backend", backend})));
    EXPECT_EQ(result.at("ranks"), 2);
    EXPECT_EQ(result.at("backend"), backend);
    std::vector<std::string> rows;
    for (const json& row : result.at("rows")) {
      rows.push_back(
          fmt::format("{} {}", row.at("operation").get<std::string>(), row.at("bytes").get<int>()));
      const double latency_us = row.at("latency_us");
      EXPECT_GT(row.at("lowest_us").get<double>(), 0);
      EXPECT_LE(row.at("lowest_us").get<double>(), latency_us);
      EXPECT_GE(row.at("highest_us").get<double>(), latency_us);
      const double algorithm = row.at("algorithm_gbps");
      EXPECT_NEAR(algorithm, row.at("bytes").get<double>() / latency_us / 1000, 1e-9 + algorithm * 1e-9);
      // Two ranks: an all-reduce moves each byte once over the bus, as a broadcast does, and
      // the halves of it half of them.
      const std::string operation = row.at("operation");
      const double factor = operation == "all_reduce" || operation == "broadcast" ? 1 : 0.5;
      EXPECT_NEAR(row.at("bus_gbps").get<double>(), algorithm * factor, 1e-9 + algorithm * 1e-9);
    }
    EXPECT_THAT(rows, testing::ElementsAre("all_reduce 4", "all_reduce 1024", "broadcast 4", "broadcast 1024",
                                           "all_gather 4", "all_gather 1024", "reduce_scatter 4",
                                           "reduce_scatter 1024"));
  }
}

TEST(BenchCollectives, PrintsATableOnce) {
  const std::string text = output_of(bench({}));
  EXPECT_THAT(text, StartsWith("2 ranks, backend shm\noperation "));
  const std::regex row(
      "\n(all_reduce|broadcast|all_gather|reduce_scatter) +(4|1024) +[0-9.]+ +"
      "[0-9.]+\\.\\.[0-9.]+ +[0-9.]+ +[0-9.]+");
  EXPECT_EQ(std::distance(std::sregex_iterator(text.begin(), text.end(), row), std::sregex_iterator()), 8)
      << text;
}

TEST(BenchCollectives, RefusesAnOperationItDoesNotKnow) {
  EXPECT_THAT(
      complaint_of({program_path("lockstep"), "bench", "collectives", "--operations", "all_redcue"}),
      HasSubstr("--operations must be one of all_reduce, broadcast, all_gather, reduce_scatter, or a list "
                "of them separated by commas: 'all_redcue'"));
}

// An installation of `lockstep` alone, as a machine without LibTorch has it.
TEST(Doctor, ReportsTheMachineWithoutLibTorch) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.path() / "bin");
  const std::string lockstep = folder.path() / "bin/lockstep";
  std::filesystem::copy_file(program_path("lockstep"), lockstep);
  const json report = json::parse(output_of({lockstep, "doctor", "--json"}));
  EXPECT_GT(report.at("ranks").at(0).at("machine").at("cpus").at("usable"), 0);
  EXPECT_EQ(report.at("ranks").at(0).at("machine").at("system").at("host"), host());
  EXPECT_EQ(report.at("ranks").at(0).at("map").at("world_size"), 1);
  EXPECT_THAT(report.at("libtorch").get<std::string>(),
              HasSubstr("this installation has no lockstep-tensor"));
  EXPECT_THAT(output_of({lockstep, "doctor"}), HasSubstr("libtorch:\n  [cli] this installation has no"));
  EXPECT_EQ(output_of({lockstep, "prefix"}), folder.path().string() + "\n");
  EXPECT_THAT(complaint_of({lockstep, "train", "sine"}),
              HasSubstr("this installation has no lockstep-tensor"));
}

}  // namespace
}  // namespace lockstep::test
