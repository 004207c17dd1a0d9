#include "launcher/slurm/submission.h"

#include <gtest/gtest.h>
#include <lockstep/error.h>

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

TEST(JobRecordTest, ReadsHowLongItRan) {
  const auto seconds = [](const std::string& text) {
    return parse_job_records("JobId=7 JobName=a\n   RunTime=" + text + " TimeLimit=00:05:00\n").at(0).seconds;
  };
  EXPECT_EQ(seconds("00:01:30"), 90);
  EXPECT_EQ(seconds("1-02:00:00"), 93600);
  EXPECT_EQ(seconds("Unknown"), 0);
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

// What Slurm 22.05 prints of an array of which task 0 runs and the others wait.
TEST(JobRecordTest, TasksOfAnArrayHaveLogsOfTheirOwn) {
  const auto records = parse_job_records(
      "JobId=7 ArrayJobId=7 ArrayTaskId=1-2 JobName=a ArrayTaskId=9 b\n"
      "   JobState=PENDING Reason=Resources Dependency=(null)\n"
      "   StdOut=/tmp/a-7_4294967294.out\n\n"
      "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=a ArrayTaskId=9 b\n"
      "   JobState=RUNNING Reason=None Dependency=(null)\n"
      "   StdOut=/tmp/a-7_0.out\n\n");
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[0].task, "1-2");
  EXPECT_FALSE(records[0].has_log());
  EXPECT_EQ(records[1].task, "0");
  EXPECT_TRUE(records[1].has_log());
}

TEST(JobRecordTest, AJobIsNoTask) {
  const auto records = parse_job_records(
      "JobId=7 JobName=ArrayTaskId=9\n   JobState=PENDING Reason=None\n   StdOut=/tmp/a-7.out\n");
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].task, "");
  EXPECT_TRUE(records[0].has_log()) << "its log will be there";
}

TEST(SubmissionTest, ANewJobHasNothingOfTheOldOne) {
  const base::Environment kept = without_job({{"SLURM_CONF", "/etc/slurm.conf"},
                                              {"SLURM_JOB_ID", "7"},
                                              {"SLURMD_NODENAME", "n1"},
                                              {"SLURM_GPUS_PER_NODE", "4"},
                                              {"SRUN_CPUS_PER_TASK", "8"},
                                              {"SBATCH_ACCOUNT", "mine"},
                                              {"PATH", "/bin"}});
  EXPECT_EQ(
      kept.values(),
      (base::Environment{{"SLURM_CONF", "/etc/slurm.conf"}, {"SBATCH_ACCOUNT", "mine"}, {"PATH", "/bin"}})
          .values());
}

TEST(SubmissionTest, WithoutSlurmNothingCanBeSent) {
  EXPECT_THROW(submit_script("#!/bin/bash\n", {{"PATH", "/nonexistent"}}), ConfigError);
  EXPECT_THROW(test_script("#!/bin/bash\n", {{"PATH", "/nonexistent"}}), ConfigError);
  EXPECT_THROW(follow_job("7", {{"PATH", "/nonexistent"}}), ConfigError);
}

}  // namespace
}  // namespace lockstep::launcher
