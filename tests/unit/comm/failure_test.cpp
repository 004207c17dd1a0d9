#include "comm/failure.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace lockstep::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

const OperationContext kWhere{"all_reduce", "gloo", 1, 4, std::chrono::milliseconds(250)};

template <typename Thrown, typename Given>
std::string text_after_translation(const Given& given) {
  try {
    std::rethrow_exception(translate_failure(std::make_exception_ptr(given), kWhere));
  } catch (const Thrown& error) {
    return error.what();
  } catch (...) {
    ADD_FAILURE() << "another exception";
  }
  return "";
}

c10::SourceLocation here() { return {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}; }

TEST(FailureTest, ALostConnectionNamesOperationRankAndBackend) {
  EXPECT_EQ(text_after_translation<CommError>(std::runtime_error("Connection closed by peer\nstack")),
            "[comm] all_reduce failed on rank 1 of 4, backend gloo: Connection closed by peer");
}

TEST(FailureTest, ATimeoutSaysHowLong) {
  for (const char* text :
       {"Timed out waiting 250ms for recv", "Operation timed out!", "wait timeout after 5ms"}) {
    EXPECT_THAT(
        text_after_translation<TimeoutError>(std::runtime_error(text)),
        testing::AllOf(HasSubstr("all_reduce timed out on rank 1 of 4"), HasSubstr("timeout 250 ms")));
  }
}

TEST(FailureTest, C10ErrorsLoseTheirBacktrace) {
  const c10::DistBackendError error(here(), "broken");
  const std::string text = text_after_translation<CommError>(error);
  EXPECT_THAT(text, HasSubstr("broken"));
  EXPECT_THAT(text, Not(HasSubstr("frame #")));
}

TEST(FailureTest, WhatTheBackendRefusesIsTheCallersFault) {
  EXPECT_THAT(text_after_translation<ConfigError>(c10::ValueError(here(), "bad split")),
              HasSubstr("backend gloo refuses it: bad split"));
  text_after_translation<ConfigError>(c10::TypeError(here(), "dtype"));
  text_after_translation<ConfigError>(c10::NotImplementedError(here(), "no such thing"));
}

TEST(FailureTest, OurOwnErrorsPass) {
  EXPECT_EQ(text_after_translation<ConfigError>(ConfigError("shm", "wrong")), "[shm] wrong");
  const auto given =
      std::make_exception_ptr(CommError("shm", "rank 2 died", CommError::Recovery::kRebuild, 2));
  EXPECT_EQ(translate_failure(given, kWhere), given);
}

}  // namespace
}  // namespace lockstep::comm
