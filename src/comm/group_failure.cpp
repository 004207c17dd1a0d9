// How a group learns which rank broke it.

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>

#include "base/log.h"
#include "comm/communicator_impl.h"

namespace lockstep {
namespace {

// Between a broken connection and rank 0's word on who it was lies a round trip.
// Shorter where the backend names a rank itself.
constexpr std::chrono::milliseconds kPatience{2000};
constexpr std::chrono::milliseconds kShortPatience{500};

}  // namespace

Communicator::Impl::Impl(comm::TransportRequest request, comm::Transport transport,
                         std::shared_ptr<comm::Lifeline> lifeline)
    : request_(std::move(request)), transport_(std::move(transport)), lifeline_(std::move(lifeline)) {
  if (lifeline_) {
    // A rank that waits for one that is alive, but waits for the dead one, would
    // otherwise wait for its whole timeout.
    subscription_ = lifeline_->on_death([this](int job_rank) {
      const auto& members = request_.job_ranks;
      const auto found = std::find(members.begin(), members.end(), job_rank);
      if (found != members.end()) abort_for(static_cast<int>(found - members.begin()));
    });
  }
}

Communicator::Impl::~Impl() {
  if (subscription_) {
    lifeline_->forget(*subscription_);
  }
  try {
    if (transport_.backend) transport_.backend->shutdown();
  } catch (const std::exception& error) {
    base::log_warning("comm", "closing a group of backend {} failed: {}", transport_.name, error.what());
  }
}

void Communicator::Impl::abort_for(int dead_rank) const {
  if (transport_.failure) {
    // Before the abort: it lets the device go on, with results that are none.
    transport_.failure->report({fmt::format("rank {} died", dead_rank), false, dead_rank});
  }
  try {
    transport_.backend->abort();
  } catch (const std::exception& error) {
    base::log_warning("comm", "aborting a group of backend {} after rank {} died failed: {}", transport_.name,
                      dead_rank, error.what());
  }
}

bool Communicator::Impl::has_failed() const {
  return transport_.failure->failed() || transport_.backend->getError() != c10d::ErrorType::SUCCESS;
}

void Communicator::Impl::throw_failure(std::string_view operation, Timeout timeout) const {
  const auto nobody_said_why = std::make_exception_ptr(CommError(
      "comm",
      fmt::format("{} failed on rank {} of {}, backend {}: an earlier operation failed on the device",
                  operation, rank(), size(), transport_.name),
      CommError::Recovery::kRebuild));
  std::rethrow_exception(explain(nobody_said_why, operation, timeout));
}

std::exception_ptr Communicator::Impl::explain(std::exception_ptr failure, std::string_view operation,
                                               Timeout timeout) const {
  const auto report = transport_.failure ? transport_.failure->get() : std::nullopt;
  if (report && report->timed_out) {
    failure = std::make_exception_ptr(
        comm::TimeoutError("comm", report->text, CommError::Recovery::kRebuild, report->rank));
  } else if (report) {
    failure =
        std::make_exception_ptr(CommError("comm", report->text, CommError::Recovery::kRebuild, report->rank));
  } else {
    failure = comm::translate_failure(std::move(failure), context(operation, timeout));
  }
  if (lifeline_ == nullptr) {
    return failure;
  }
  try {
    std::rethrow_exception(failure);
  } catch (const comm::TimeoutError&) {
    return failure;  // nobody died: all connections stand
  } catch (const CommError& error) {
    return name_the_departed(error, operation);
  } catch (...) {
    return failure;
  }
}

std::exception_ptr Communicator::Impl::name_the_departed(const CommError& error,
                                                         std::string_view operation) const {
  const bool named = error.failed_rank().has_value();
  const auto departure = lifeline_->first_departure(named ? kShortPatience : kPatience);
  if (!departure || (named && !departure->died)) {
    return std::current_exception();
  }
  const auto& members = request_.job_ranks;
  const auto found = std::find(members.begin(), members.end(), departure->rank);
  std::optional<int> failed_rank;
  std::string place;
  if (found != members.end()) {
    failed_rank = static_cast<int>(found - members.begin());
    place = *failed_rank == departure->rank ? "" : fmt::format(", rank {} of this group,", *failed_rank);
  }
  return std::make_exception_ptr(CommError(
      "comm",
      fmt::format("rank {}{} {} during {} on rank {} of {}, backend {}", departure->rank, place,
                  departure->died ? "died" : "left the job", operation, rank(), size(), transport_.name),
      CommError::Recovery::kRebuild, failed_rank));
}

}  // namespace lockstep
