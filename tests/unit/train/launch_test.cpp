#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>

#include <functional>
#include <string>

#include "support/config_error.h"

namespace lockstep::train {
namespace {

// What a program that throws prints, and its exit status.
std::pair<int, std::string> ending_of(const std::function<int()>& body) {
  testing::internal::CaptureStderr();
  const int status = run_main(body);
  return {status, testing::internal::GetCapturedStderr()};
}

// The launcher looks for another cause behind this status, so a rank whose peer left is not blamed.
TEST(RunMainTest, AnErrorOfAStoreOrAGroupIsAFailureOfCommunication) {
  const auto [status, text] = ending_of([]() -> int {
    C10_THROW_ERROR(DistNetworkError, "the job's store on rank 0 is gone: rank 0 closed the connection");
  });
  EXPECT_EQ(status, kExitCommunication);
  EXPECT_THAT(text, testing::HasSubstr("[comm] the job's store on rank 0 is gone"));
  EXPECT_EQ(ending_of([]() -> int { C10_THROW_ERROR(DistBackendError, "x"); }).first, kExitCommunication);
}

TEST(RunMainTest, AnotherErrorOfLibTorchIsTheProgramsFailure) {
  const auto [status, text] = ending_of([]() -> int { C10_THROW_ERROR(ValueError, "a size"); });
  EXPECT_EQ(status, kExitFailure);
  EXPECT_THAT(text, testing::HasSubstr("[libtorch] a size"));
}

// The name of the other node does not resolve on rank 0's: over loopback no rank of it would ever come.
TEST(JoinRanksTest, AHostThatRankZeroCannotReachIsAnErrorOfAllRanks) {
  GivenRanks ranks;
  ranks.size = 2;
  ranks.hosts = {"here", "no-such-host.invalid"};
  std::string sent;
  ranks.broadcast = [&](std::string& text) { ranks.rank == 0 ? sent = text : text = sent; };
  const std::string expected =
      "[launch] rank 0 on 'here' finds no way to 'no-such-host.invalid', the host of rank 1: ";
  EXPECT_THAT(test::error_of([&] { join_ranks(ranks); }), testing::StartsWith(expected));
  ranks.rank = 1;
  EXPECT_THAT(test::error_of([&] { join_ranks(ranks); }), testing::StartsWith(expected));
}

}  // namespace
}  // namespace lockstep::train
