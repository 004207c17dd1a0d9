#include "launcher/agent/worker_output.h"

#include <gtest/gtest.h>

namespace lockstep::launcher {
namespace {

using std::chrono::seconds;

TEST(StatusLineTest, SaysWhatTheJobIsDoing) {
  JobStatus status;
  status.waiting_for = "waiting for the other nodes";
  EXPECT_EQ(format_status(status), "[run] 0:00, waiting for the other nodes");
  status.elapsed = seconds(65);
  status.ranks = 1;
  EXPECT_EQ(format_status(status), "[run] 1:05, 1 rank on 1 node");
  status = {.elapsed = seconds(3725),
            .ranks = 8,
            .nodes = 2,
            .restarts = 1,
            .max_restarts = 3,
            .steps = JobStatus::Steps{117, 120},
            .waiting_for = ""};
  EXPECT_EQ(format_status(status), "[run] 1:02:05, 8 ranks on 2 nodes, step 117-120, restart 1 of 3");
  status.steps->least = 120;
  EXPECT_EQ(format_status(status), "[run] 1:02:05, 8 ranks on 2 nodes, step 120, restart 1 of 3");
}

TEST(StatusLineTest, StandsBelowWholeLines) {
  StatusLine line;
  EXPECT_EQ(line.around("before\n"), "before\n");
  line.set("status");
  EXPECT_EQ(line.around(""), "\x1b[2mstatus\x1b[0m\r");
  EXPECT_EQ(line.around("text\n"), "\r\x1b[Ktext\n\x1b[2mstatus\x1b[0m\r");
  EXPECT_EQ(line.around("part"), "\r\x1b[Kpart") << "the line is not over";
  EXPECT_EQ(line.around(""), "");
  EXPECT_EQ(line.around("ial\n"), "ial\n\x1b[2mstatus\x1b[0m\r");
  line.set("");
  EXPECT_EQ(line.around(""), "\r\x1b[K");
  EXPECT_EQ(line.around("after\n"), "after\n");
}

}  // namespace
}  // namespace lockstep::launcher
