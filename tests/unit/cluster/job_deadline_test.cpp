#include "cluster/job_deadline.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>

namespace lockstep::cluster {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

const WallTime kStart{seconds(1'700'000'000)};
const base::Environment kJob{{"SLURM_JOB_ID", "7"}};

std::string describe(const base::Environment& environment, std::optional<seconds> given,
                     const std::optional<std::string>& answer) {
  const auto deadline = job_deadline(environment, given, kStart, [&] { return answer; });
  if (!deadline) return "unknown";
  return std::to_string(std::chrono::duration_cast<seconds>(deadline->time - kStart).count()) + " by " +
         deadline->source;
}

TEST(JobDeadlineTest, TheVariableComesFirst) {
  base::Environment environment = kJob;
  environment.set("SLURM_JOB_END_TIME", "1700003600");
  EXPECT_EQ(describe(environment, hours(5), "1700000060"), "3600 by SLURM_JOB_END_TIME");
}

TEST(JobDeadlineTest, ThenTheLimitThatWasGiven) {
  EXPECT_EQ(describe(kJob, hours(5), "1700000060"), "18000 by the time limit given");
  EXPECT_EQ(describe({}, seconds(90), std::nullopt), "90 by the time limit given");
}

TEST(JobDeadlineTest, ThenSqueue) {
  EXPECT_EQ(describe(kJob, std::nullopt, "1700000060\n"), "60 by squeue");
  base::Environment unlimited = kJob;
  unlimited.set("SLURM_JOB_END_TIME", "0");
  EXPECT_EQ(describe(unlimited, std::nullopt, "1700000060\n"), "60 by squeue");
}

TEST(JobDeadlineTest, ElseUnknown) {
  EXPECT_EQ(describe(kJob, std::nullopt, std::nullopt), "unknown");
  for (const char* answer :
       {"", "\n", "N/A\n", "Unknown", "NONE", "2026-11-15T06:25:39", "12", "-1", "1700000060x"}) {
    EXPECT_EQ(describe(kJob, std::nullopt, answer), "unknown") << answer;
  }
}

TEST(JobDeadlineTest, AsksNobodyOutsideAJob) {
  const auto ask = []() -> std::optional<std::string> { throw std::logic_error("asked"); };
  EXPECT_FALSE(job_deadline({}, std::nullopt, kStart, ask));
}

TEST(JobDeadlineTest, ABrokenVariableIsAnError) {
  for (const char* value : {"", "soon", "17", "-1700003600"}) {
    base::Environment environment = kJob;
    environment.set("SLURM_JOB_END_TIME", value);
    EXPECT_THROW(describe(environment, std::nullopt, std::nullopt), ConfigError) << value;
  }
}

TEST(JobDeadlineTest, WithoutSqueueNobodyAnswers) {
  EXPECT_EQ(ask_squeue_for_end({{"SLURM_JOB_ID", "7"}, {"PATH", "/nonexistent"}}), std::nullopt);
}

// Princeton's example has a limit of one minute.
TEST(StopMarginTest, IsAtMostATenthOfTheTimeThatIsLeft) {
  using std::chrono::seconds;
  EXPECT_EQ(stop_margin(seconds(120), std::chrono::hours(1)), seconds(120));
  EXPECT_EQ(stop_margin(seconds(120), seconds(60)), seconds(6));
  EXPECT_EQ(stop_margin(seconds(120), seconds(-5)), seconds(0));
  EXPECT_EQ(stop_margin(seconds(10), seconds(60)), seconds(6));
}

}  // namespace
}  // namespace lockstep::cluster
