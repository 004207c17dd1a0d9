#include "comm/mpi/mpi_work.h"

#include <fmt/format.h>

#include <stdexcept>
#include <thread>

#include "comm/mpi/mpi_error.h"

namespace lockstep::comm {

using Clock = std::chrono::steady_clock;

MpiWork::MpiWork(std::shared_ptr<MpiGroup> group, int rank, c10d::OpType operation,
                 std::chrono::milliseconds timeout, std::vector<at::Tensor> tensors,
                 std::function<void()> then)
    : Work(rank, operation),
      group_(std::move(group)),
      timeout_(timeout),
      tensors_(std::move(tensors)),
      then_(std::move(then)) {}

MpiWork::~MpiWork() {
  if (!done_ || failure_) {
    // MPI cannot cancel a collective and may write to its memory until the end.
    static_cast<void>(new std::vector<at::Tensor>(std::move(tensors_)));
  }
}

void MpiWork::fail(const std::string& what) {
  group_->mark_broken();
  failure_ = std::make_exception_ptr(std::runtime_error(what));
  done_ = true;
}

void MpiWork::poll() {
  if (done_) {
    return;
  }
  if (group_->is_broken()) {
    fail("aborted because a rank of the job is gone");
    return;
  }
  int completed = 0;
  try {
    check_mpi(
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &completed, MPI_STATUSES_IGNORE),
        "MPI_Testall");
  } catch (const std::exception& error) {
    fail(error.what());
    return;
  }
  if (completed != 0) {
    done_ = true;
    if (then_) {
      then_();
    }
    tensors_.clear();
  }
}

bool MpiWork::isCompleted() {
  poll();
  return done_;
}

bool MpiWork::wait(std::chrono::milliseconds timeout) {
  const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
  const auto deadline = Clock::now() + limit;
  for (poll(); !done_; poll()) {
    if (Clock::now() > deadline) {
      fail(fmt::format("timed out after {} ms", limit.count()));
      break;
    }
    std::this_thread::yield();
  }
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  return true;
}

}  // namespace lockstep::comm
