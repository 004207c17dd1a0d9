#pragma once

#include <functional>
#include <torch/csrc/distributed/c10d/Work.hpp>

namespace lockstep::comm {

// A Work of a group that knows nothing of the death of ranks outside it: wait() ends
// early when `aborted` says so.
class AbortableWork final : public c10d::Work {
 public:
  AbortableWork(int rank, c10d::OpType operation, c10::intrusive_ptr<c10d::Work> inner,
                std::function<bool()> aborted, std::chrono::milliseconds timeout)
      : Work(rank, operation), inner_(std::move(inner)), aborted_(std::move(aborted)), timeout_(timeout) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }
  bool wait(std::chrono::milliseconds timeout) override;

 private:
  c10::intrusive_ptr<c10d::Work> inner_;
  std::function<bool()> aborted_;
  std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::comm
