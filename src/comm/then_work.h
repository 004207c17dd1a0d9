#pragma once

#include <torch/csrc/distributed/c10d/Work.hpp>

#include <functional>

namespace lockstep::comm {

// A Work followed by a step in the thread that waits for it, such as copying the
// result to where it belongs. The step runs once, after success only.
class ThenWork final : public c10d::Work {
 public:
  ThenWork(int rank, c10d::OpType operation, c10::intrusive_ptr<c10d::Work> first, std::function<void()> then)
      : Work(rank, operation), first_(std::move(first)), then_(std::move(then)) {}

  bool wait(std::chrono::milliseconds timeout) override {
    first_->wait(timeout);
    run();
    return true;
  }

  bool isCompleted() override {
    if (!first_->isCompleted()) {
      return false;
    }
    if (first_->isSuccess()) {
      run();
    }
    return true;
  }

  bool isSuccess() const override { return first_->isSuccess(); }
  std::exception_ptr exception() const override { return first_->exception(); }

 private:
  void run() {
    if (then_) {
      std::exchange(then_, nullptr)();
    }
  }

  c10::intrusive_ptr<c10d::Work> first_;
  std::function<void()> then_;
};

}  // namespace lockstep::comm
