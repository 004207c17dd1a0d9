#include "comm/hierarchical/abortable_work.h"

#include <fmt/format.h>

#include "comm/failure.h"
#include "comm/hierarchical/backoff.h"

namespace lockstep::comm {

bool AbortableWork::wait(std::chrono::milliseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const auto deadline = Clock::now() + limit;
  for (Backoff backoff; !inner_->isCompleted(); backoff.pause()) {
    if (aborted_()) {
      throw CommError("comm", "aborted because a rank of the job is gone", CommError::Recovery::kRebuild);
    }
    if (Clock::now() > deadline) {
      throw TimeoutError("comm",
                         fmt::format("{} timed out on rank {} after {} ms: the peer did not take part",
                                     c10d::opTypeToString(opType_), rank_, limit.count()),
                         CommError::Recovery::kRebuild);
    }
  }
  return inner_->wait(kNoTimeout);
}

}  // namespace lockstep::comm
