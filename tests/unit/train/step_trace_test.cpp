#include "train/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/trace.h"
#include "support/temporary_folder.h"

namespace lockstep::train {
namespace {

TEST(StepTraceTest, ReadsTheSteps) {
  EXPECT_EQ(parse_trace_steps("10:12"), (std::pair<int64_t, int64_t>(10, 12)));
  EXPECT_EQ(parse_trace_steps("7"), (std::pair<int64_t, int64_t>(7, 7)));
  for (const char* text : {"", "0", "3:2", "-1:4", "1:", ":3", "1:2:3", "one"}) {
    EXPECT_EQ(parse_trace_steps(text), std::nullopt) << text;
  }
}

TEST(StepTraceTest, WritesOperatorsPhasesAndCollectivesOfTheseStepsOnly) {
  const test::TemporaryFolder folder;
  StepTrace trace("2:3", folder.path(), /*rank=*/1);
  for (int step = 1; step <= 4; ++step) {
    trace.before(step);
    EXPECT_EQ(trace.recording(), step == 2 || step == 3);
    const auto begin = base::Trace::Clock::now();
    const torch::Tensor x = torch::ones({2, 2}, torch::requires_grad());
    torch::mm(x, x).sum().backward();
    base::Trace::of_process().add("phase", "step " + std::to_string(step), begin);
    base::Trace::of_process().add("collective", "all_reduce", begin, /*overlaps=*/true);
    trace.after(step);
  }
  std::ifstream file(folder.path() / "trace_rank1.json");
  const nlohmann::json events = nlohmann::json::parse(file).at("traceEvents");
  std::multiset<std::string> names;
  for (const nlohmann::json& event : events) {
    names.insert(event.at("name").get<std::string>() + "/" + event.at("ph").get<std::string>());
    EXPECT_EQ(event.at("pid").get<int>(), 1);
    if (event.at("ph") == "X") EXPECT_GE(event.at("dur").get<double>(), 0);
  }
  EXPECT_EQ(names.count("aten::mm/X"), 6u) << "forward, and two in backward, in two steps";
  EXPECT_EQ(names.count("step 1/X") + names.count("step 4/X"), 0u);
  EXPECT_EQ(names.count("step 2/X"), 1u);
  EXPECT_EQ(names.count("step 3/X"), 1u);
  EXPECT_EQ(names.count("all_reduce/b"), 2u);
  EXPECT_EQ(names.count("all_reduce/e"), 2u);
}

TEST(StepTraceTest, WithoutStepsNothingIsRecorded) {
  const test::TemporaryFolder folder;
  StepTrace trace("", folder.path(), 0);
  trace.before(1);
  EXPECT_FALSE(trace.recording());
  EXPECT_FALSE(base::Trace::of_process().recording());
  trace.after(1);
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "trace_rank0.json"));
}

}  // namespace
}  // namespace lockstep::train
