// How a group learns which rank broke it.

#include <fmt/format.h>
#include <lockstep/error.h>

#include <algorithm>

#include "base/log.h"
#include "comm/communicator_impl.h"

namespace lockstep {
namespace {

// Between a broken connection and rank 0's word on who it was lies a round trip.
constexpr std::chrono::seconds kPatience{2};

}  // namespace

Communicator::Impl::Impl(comm::TransportRequest request, comm::Transport transport,
                         comm::Membership membership)
    : request_(std::move(request)), transport_(std::move(transport)), membership_(std::move(membership)) {
  if (membership_.lifeline) {
    // A rank that waits for one that is alive, but waits for the dead one, would
    // otherwise wait for its whole timeout.
    subscription_ = membership_.lifeline->on_death([this](int job_rank) {
      const auto& members = membership_.job_ranks;
      if (std::find(members.begin(), members.end(), job_rank) != members.end()) {
        transport_.backend->abort();
      }
    });
  }
}

Communicator::Impl::~Impl() {
  if (subscription_) {
    membership_.lifeline->forget(*subscription_);
  }
}

std::exception_ptr Communicator::Impl::explain(std::exception_ptr failure, std::string_view operation,
                                               Timeout timeout) const {
  failure = comm::translate_failure(std::move(failure), context(operation, timeout));
  if (membership_.lifeline == nullptr || !comm::may_name_a_rank(failure)) {
    return failure;
  }
  const auto departure = membership_.lifeline->first_departure(kPatience);
  if (!departure) {
    return failure;
  }
  const auto& members = membership_.job_ranks;
  const auto found = std::find(members.begin(), members.end(), departure->rank);
  std::optional<int> failed_rank;
  std::string whose;
  if (found != members.end()) {
    failed_rank = static_cast<int>(found - members.begin());
    whose = *failed_rank == departure->rank ? "" : fmt::format(" (rank {} of this group)", *failed_rank);
  }
  return std::make_exception_ptr(CommError(
      "comm",
      fmt::format("rank {}{} {} during {} on rank {} of {}, backend {}", departure->rank, whose,
                  departure->died ? "died" : "left the job", operation, rank(), size(), transport_.name),
      CommError::Recovery::kRebuild, failed_rank));
}

}  // namespace lockstep
