#include "launch/slurm/job_record.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

// As Slurm 22.05 prints it, shortened.
std::string record(const std::string& name, const std::string& state, const std::string& exit_code) {
  return "JobId=7 ArrayJobId=7 JobName=" + name +
         "\n"
         "   JobState=" +
         state +
         " Reason=None Dependency=(null)\n"
         "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=" +
         exit_code +
         "\n"
         "   StdErr=/tmp/my log.out\n"
         "   StdOut=/tmp/my log.out\n"
         "   Power=\n"
         "   \n\n";
}

TEST(JobRecordTest, ReadsOneJob) {
  const auto records = parse_job_records(record("a", "RUNNING", "0:0"));
  ASSERT_EQ(records.size(), 1);
  EXPECT_EQ(records[0].state, "RUNNING");
  EXPECT_EQ(records[0].log_path, "/tmp/my log.out");
  EXPECT_FALSE(records[0].ended());
}

TEST(JobRecordTest, ReadsTheTasksOfAnArray) {
  const auto records = parse_job_records(record("a", "COMPLETED", "0:0") + record("a", "FAILED", "3:0"));
  ASSERT_EQ(records.size(), 2);
  EXPECT_EQ(records[0].status(), 0);
  EXPECT_EQ(records[1].status(), 3);
}

TEST(JobRecordTest, ANameIsNotAField) {
  const auto records = parse_job_records(record("x JobState=COMPLETED StdOut=/etc/passwd", "RUNNING", "0:0"));
  ASSERT_EQ(records.size(), 1);
  EXPECT_EQ(records[0].state, "RUNNING");
  EXPECT_EQ(records[0].log_path, "/tmp/my log.out");
}

TEST(JobRecordTest, StatusTellsHowItEnded) {
  const auto status = [](const char* state, const char* code) {
    return parse_job_records(record("a", state, code)).at(0).status();
  };
  EXPECT_EQ(status("COMPLETED", "0:0"), 0);
  EXPECT_EQ(status("FAILED", "75:0"), 75);
  EXPECT_EQ(status("CANCELLED", "0:15"), 143);
  EXPECT_EQ(status("TIMEOUT", "0:0"), 1);
  EXPECT_EQ(status("NODE_FAIL", "0:0"), 1);
}

TEST(JobRecordTest, WaitingAgainIsNotEnded) {
  for (const char* state : {"PENDING", "REQUEUED", "COMPLETING", "SUSPENDED", "CONFIGURING", ""}) {
    EXPECT_FALSE(parse_job_records(record("a", state, "0:0")).at(0).ended()) << state;
  }
}

TEST(JobRecordTest, NothingIsNoRecord) {
  EXPECT_TRUE(parse_job_records("").empty());
  EXPECT_TRUE(parse_job_records("No jobs in the system\n").empty());
  EXPECT_EQ(parse_job_records("JobId=7").size(), 1);
}

}  // namespace
}  // namespace lockstep::launcher
