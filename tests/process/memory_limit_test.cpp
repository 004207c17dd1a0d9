// A model that is larger than what a rank may use, by a real limit.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>

#include "support/process.h"

namespace lockstep::test {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Without the holes that the C library's heap has where blocks of other sizes were freed:
// every tensor gets memory of its own from the system, and gives it back.
Process start(const std::string& how) {
  return Process({program_path("test/limited_training"), how}, {{"LOCKSTEP_NPROCS", "2"},
                                                                {"LOCKSTEP_BACKEND", "gloo"},
                                                                {"LOCKSTEP_COMPUTE_SETUP", "cpu"},
                                                                {"MALLOC_MMAP_THRESHOLD_", "65536"}});
}

ExitStatus finish(Process& process) {
  const auto status = process.wait(std::chrono::seconds(180));
  EXPECT_TRUE(status) << "no end: " << process.output() << process.errors();
  return status.value_or(ExitStatus{});
}

TEST(MemoryLimit, Stage3TrainsWhatDoesNotFitWhole) {
  Process process = start("3");
  EXPECT_EQ(finish(process).code, 0) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("trained, loss"));
}

TEST(MemoryLimit, OtherStagesNameTheOneThatFits) {
  for (const char* stage : {"0", "1", "2"}) {
    Process process = start(stage);
    EXPECT_EQ(finish(process).code, kExitUsage) << process.errors();
    EXPECT_THAT(process.errors(), ContainsRegex(std::string("the model does not fit: at stage ") + stage +
                                                " .*RLIMIT_DATA.*stage 3 would fit"));
  }
}

TEST(MemoryLimit, ATrainerNamesItToo) {
  Process process = start("trainer");
  EXPECT_EQ(finish(process).code, kExitUsage) << process.errors();
  EXPECT_THAT(process.errors(), ContainsRegex("the model does not fit: at stage 0 .*stage 3 would fit"));
}

// The limit is a real one.
TEST(MemoryLimit, WithoutTheCheckMemoryEnds) {
  Process process = start("unchecked");
  EXPECT_NE(finish(process), (ExitStatus{0, 0}));
  EXPECT_THAT(process.output(), Not(HasSubstr("trained")));
}

}  // namespace
}  // namespace lockstep::test
