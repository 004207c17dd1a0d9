#include "train/step_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <map>
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

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

TEST(StepTraceTest, WritesOperatorsPhasesAndCollectivesOfTheseStepsOnly) {
  const test::TemporaryFolder folder;
  StepTrace trace("2:3", folder.path(), /*rank=*/1, /*world_size=*/2, "shm");
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
  const nlohmann::json file = read_json(folder.path() / "rank1.pt.trace.json");
  EXPECT_EQ(file.at("schemaVersion"), 1);
  EXPECT_EQ(file.at("distributedInfo"), (nlohmann::json{{"backend", "shm"}, {"rank", 1}, {"world_size", 2}}));
  const nlohmann::json events = file.at("traceEvents");
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
  EXPECT_EQ(names.count("ProfilerStep#2/X"), 1u);
  EXPECT_EQ(names.count("ProfilerStep#3/X"), 1u);
  EXPECT_EQ(names.count("gloo:all_reduce/X"), 2u);
}

struct Interval {
  double begin;
  double end;
};

// The events of this name, by their rows.
std::multimap<int, Interval> intervals_of(const nlohmann::json& events, const std::string& name) {
  std::multimap<int, Interval> result;
  for (const nlohmann::json& event : events) {
    if (event.at("name") != name || event.at("ph") != "X") continue;
    const double begin = event.at("ts").get<double>();
    result.insert({event.at("tid").get<int>(), {begin, begin + event.at("dur").get<double>()}});
  }
  return result;
}

// Readers refuse events of one row that overlap without being nested.
TEST(StepTraceTest, EventsOfOneRowNest) {
  const test::TemporaryFolder folder;
  StepTrace trace("1:2", folder.path(), 0, 2, "nccl");
  base::Trace& spans = base::Trace::of_process();
  base::Trace::Clock::time_point between;
  for (int step = 1; step <= 2; ++step) {
    trace.before(step);
    if (step == 2) spans.add("phase", "running", between);
    const auto begin = base::Trace::Clock::now();
    spans.add("phase", "data", begin);
    spans.add("collective", "all_reduce", begin, /*overlaps=*/true);
    spans.add("collective", "all_gather", begin, /*overlaps=*/true);
    between = base::Trace::Clock::now();
    trace.after(step);
  }
  const nlohmann::json events = read_json(folder.path() / "rank0.pt.trace.json").at("traceEvents");
  const auto steps = intervals_of(events, "ProfilerStep#1");
  const auto next_steps = intervals_of(events, "ProfilerStep#2");
  const auto running = intervals_of(events, "running");
  ASSERT_EQ(steps.size() + next_steps.size() + running.size(), 3u);
  EXPECT_NEAR(steps.begin()->second.end, next_steps.begin()->second.begin, 1e-3) << "as PyTorch's steps";
  EXPECT_GE(running.begin()->second.begin, steps.begin()->second.begin);
  EXPECT_LE(running.begin()->second.end, next_steps.begin()->second.begin + 1e-3);
  EXPECT_EQ(intervals_of(events, "data").size(), 2u);
  EXPECT_EQ(intervals_of(events, "enumerate(DataLoader)#data.__next__").size(), 2u)
      << "as TensorBoard knows it";
  const auto reduced = intervals_of(events, "nccl:all_reduce");
  const auto gathered = intervals_of(events, "nccl:all_gather");
  ASSERT_EQ(reduced.size() + gathered.size(), 4u);
  EXPECT_NE(reduced.begin()->first, gathered.begin()->first) << "they overlap";
}

// The names of the steps in the trace of rank 0; empty: there is no trace.
std::set<std::string> traced_steps(const std::filesystem::path& folder) {
  std::set<std::string> names;
  const std::filesystem::path file = folder / "rank0.pt.trace.json";
  if (!std::filesystem::exists(file)) return names;
  const nlohmann::json trace = read_json(file);
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::string name = event.at("name");
    if (name.starts_with("ProfilerStep")) names.insert(name);
  }
  return names;
}

TEST(StepTraceTest, ATrainingThatEndsInsideTheRangeWritesItsSteps) {
  for (const bool fails : {false, true}) {
    const test::TemporaryFolder folder;
    {
      StepTrace trace("2:9", folder.path(), 0);
      for (int step = 1; step <= 3; ++step) {
        trace.before(step);
        trace.after(step);
      }
      trace.before(4);  // there is no batch for it
      if (!fails) trace.finish();
    }
    EXPECT_FALSE(base::Trace::of_process().recording());
    EXPECT_EQ(traced_steps(folder.path()), (std::set<std::string>{"ProfilerStep#2", "ProfilerStep#3"}))
        << fails;
  }
}

TEST(StepTraceTest, WithoutAStepOfTheRangeItWarns) {
  const auto warning = [](const std::string& steps, int first, int last) {
    const test::TemporaryFolder folder;
    testing::internal::CaptureStderr();
    StepTrace trace(steps, folder.path(), 0);
    for (int step = first; step <= last; ++step) {
      trace.before(step);
      trace.after(step);
    }
    trace.before(last + 1);
    trace.finish();
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
    EXPECT_FALSE(base::Trace::of_process().recording());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning("3:9", 1, 2),
              testing::HasSubstr("no trace is written: trace_steps is 3:9, and steps 1 to 2 were trained"));
  EXPECT_THAT(warning("3:9", 10, 12), testing::HasSubstr("and steps 10 to 12 were trained"));
  EXPECT_THAT(warning("3:3", 1, 0), testing::HasSubstr("and no step was trained"));
  EXPECT_EQ(warning("", 1, 2), "");
}

TEST(StepTraceTest, WithoutStepsNothingIsRecorded) {
  const test::TemporaryFolder folder;
  StepTrace trace("", folder.path(), 0);
  trace.before(1);
  EXPECT_FALSE(trace.recording());
  EXPECT_FALSE(base::Trace::of_process().recording());
  trace.after(1);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace lockstep::train
