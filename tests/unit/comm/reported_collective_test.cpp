#include <gtest/gtest.h>

#include "comm/communicator_impl.h"

namespace lockstep::comm {
namespace {

// Those of NCCL are not reported to the launcher, which would take one that the host need not wait for as a
// rank that hangs. The trace has them like all others.
TEST(ReportedCollectiveTest, TheTraceHasCollectivesThatTheLauncherDoesNotWatch) {
  for (const bool to_launcher : {true, false}) {
    base::Trace& trace = base::Trace::of_process();
    trace.start();
    ReportedCollective collective;
    collective.start("all_reduce", to_launcher);
    collective.pause();
    collective.resume("all_reduce");
    collective.finish();
    const std::vector<base::Trace::Span> spans = trace.stop();
    ASSERT_EQ(spans.size(), 2u) << "until it was set aside, and after it";
    for (const base::Trace::Span& span : spans) {
      EXPECT_EQ(span.name, "all_reduce");
      EXPECT_STREQ(span.category, "collective");
      EXPECT_TRUE(span.overlaps);
    }
  }
}

}  // namespace
}  // namespace lockstep::comm
