#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "support/process.h"

namespace lockstep::test {
namespace {

TEST(BenchData, UsesTheCpusOfItsMask) {
  Process bench({"taskset", "-c", "0", program_path("lockstep"), "bench", "data", "--images", "cifar",
                 "--seconds", "0.01", "--repeats", "1", "--json"});
  const auto status = bench.wait(std::chrono::seconds(120));
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 0) << bench.errors();
  const nlohmann::json result = nlohmann::json::parse(bench.output());
  EXPECT_EQ(result.at("cores"), 1);
  ASSERT_EQ(result.at("rows").size(), 1u) << "one CPU, one number of threads";
  EXPECT_EQ(result.at("rows")[0].at("threads"), 1);
  EXPECT_GT(result.at("rows")[0].at("images_per_s"), 0);
}

}  // namespace
}  // namespace lockstep::test
