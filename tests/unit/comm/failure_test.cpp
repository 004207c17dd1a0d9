// What c10d's exceptions become, and what a group does with a failure that its backend reports after
// wait() has returned.

#include "comm/failure.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "comm/backends.h"
#include "comm/communicator_impl.h"

namespace lockstep::comm {
namespace {

using testing::HasSubstr;
using testing::Not;

// --- c10d's exceptions ---

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

// --- failures of a device ---

// As with NCCL, an operation is complete for the host when it has started.
class DeviceBackend final : public c10d::Backend {
 public:
  DeviceBackend() : Backend(0, 2) {}
  const std::string getBackendName() const override { return "device"; }
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<CompletedWork>(0, c10d::OpType::ALLREDUCE);
  }
  c10d::ErrorType getError() override { return error; }
  void abort() override {}
  void shutdown() override {}

  c10d::ErrorType error = c10d::ErrorType::SUCCESS;
};

class DeviceFailureTest : public testing::Test {
 protected:
  DeviceFailureTest()
      : backend_(c10::make_intrusive<DeviceBackend>()),
        failure_(std::make_shared<DeviceFailure>()),
        group_(group(failure_)) {}

  Communicator group(std::shared_ptr<DeviceFailure> failure) const {
    TransportRequest request;
    request.size = 2;
    request.job_ranks = {0, 1};
    return Communicator(std::make_shared<Communicator::Impl>(
        std::move(request), Transport{backend_, "nccl", Transport::Devices::kCpu, std::move(failure)},
        nullptr));
  }

  // The text of the CommError, and the rank that it names.
  static std::pair<std::string, std::optional<int>> error_of(const std::function<void()>& body) {
    try {
      body();
    } catch (const CommError& error) {
      return {error.what(), error.failed_rank()};
    }
    return {"no CommError", std::nullopt};
  }

  const c10::intrusive_ptr<DeviceBackend> backend_;
  const std::shared_ptr<DeviceFailure> failure_;
  const Communicator group_;
};

TEST_F(DeviceFailureTest, NothingIsThrownWithoutAReport) {
  group_.all_reduce(torch::ones({3})).wait();
  throw_if_failed(group_, "a read");
}

TEST_F(DeviceFailureTest, TheFirstReportIsThrownByEveryOperation) {
  failure_->report({"all_reduce timed out: rank 1 did not take part", true, 1});
  failure_->report({"something else", false, 0});
  for (const std::function<void()>& body :
       {std::function<void()>([&] { group_.all_reduce(torch::ones({3})); }),
        std::function<void()>([&] { group_.barrier(); }),
        std::function<void()>([&] { throw_if_failed(group_, "a read"); })}) {
    const auto [text, rank] = error_of(body);
    EXPECT_EQ(text, "[comm] all_reduce timed out: rank 1 did not take part");
    EXPECT_EQ(rank, 1);
  }
}

TEST_F(DeviceFailureTest, AWaitAfterTheReportDoesNotSucceed) {
  Work work = group_.all_reduce(torch::ones({3}));
  failure_->report({"all_reduce failed: no reason", false, std::nullopt});
  EXPECT_THAT(error_of([&] { work.wait(); }).first, HasSubstr("all_reduce failed: no reason"));
  EXPECT_THAT(error_of([&] { work.wait(); }).first, HasSubstr("all_reduce failed: no reason"));
}

TEST_F(DeviceFailureTest, AnErrorThatOnlyTheBackendKnowsIsThrownToo) {
  backend_->error = c10d::ErrorType::COMM_ERROR;
  EXPECT_THAT(error_of([&] { group_.all_reduce(torch::ones({3})); }).first,
              HasSubstr("an earlier operation failed on the device"));
}

// Ranks agree on a checkpoint in a host group, and must not agree on that of a broken step.
TEST_F(DeviceFailureTest, AHostGroupFailsWithItsDeviceGroup) {
  const Communicator host = group(nullptr);
  host.impl()->follow(group_.impl());
  host.all_reduce(torch::ones({3})).wait();
  failure_->report({"all_reduce failed: no reason", false, 1});
  EXPECT_EQ(error_of([&] { host.all_reduce(torch::ones({3})); }).second, 1);
}

}  // namespace
}  // namespace lockstep::comm
