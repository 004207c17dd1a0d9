#include "comm/hierarchical/pipeline.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include "comm/failure.h"
#include "comm/hierarchical/backoff.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

}  // namespace

class Pipeline::StagedWork final : public c10d::Work {
 public:
  StagedWork(std::shared_ptr<Pipeline> pipeline, int rank, c10d::OpType operation, std::vector<Stage> stages,
             std::chrono::milliseconds timeout, std::function<void()> finish)
      : Work(rank, operation),
        pipeline_(std::move(pipeline)),
        stages(std::move(stages)),
        finish_(std::move(finish)),
        timeout_(timeout) {}

  bool isCompleted() override {
    pipeline_->progress();
    return done();
  }

  bool isSuccess() const override { return done() && !failure_; }
  std::exception_ptr exception() const override { return failure_; }

  bool wait(std::chrono::milliseconds timeout) override {
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    const auto deadline = Clock::now() + limit;
    for (Backoff backoff; !done();) {
      if (pipeline_->progress()) {
        backoff.moved();
        continue;
      }
      if (Clock::now() > deadline) {
        pipeline_->fail(std::make_exception_ptr(TimeoutError(
            "comm",
            fmt::format("{} timed out on rank {} in stage {} of {} after {} ms: a peer did not take part",
                        c10d::opTypeToString(opType_), rank_, next, stages.size(), limit.count()),
            CommError::Recovery::kRebuild)));
      }
      backoff.pause();
    }
    if (failure_) {
      std::rethrow_exception(failure_);
    }
    return true;
  }

  bool done() const { return done_; }

  void succeed() {
    if (finish_) {
      finish_();
    }
    end();
  }

  void fail(std::exception_ptr failure) {
    failure_ = std::move(failure);
    end();
  }

 private:
  void end() {
    done_ = true;
    stages.clear();  // drops the tensors
    running = nullptr;
    finish_ = nullptr;
  }

  std::shared_ptr<Pipeline> pipeline_;

 public:
  // Kept by the pipeline.
  std::vector<Stage> stages;
  std::vector<uint64_t> tickets;  // the place of each stage in its channel's order
  size_t next = 0;                // stage to start
  WorkPtr running;                // stage next - 1, while it runs

 private:
  std::function<void()> finish_;
  std::chrono::milliseconds timeout_;
  bool done_ = false;
  std::exception_ptr failure_;
};

Pipeline::Pipeline(int rank, RankInGroup rank_in_group)
    : rank_(rank), rank_in_group_(std::move(rank_in_group)) {}

Pipeline::~Pipeline() = default;

WorkPtr Pipeline::submit(c10d::OpType operation, std::vector<Stage> stages, std::chrono::milliseconds timeout,
                         std::function<void()> finish) {
  progress();
  if (failure_) {
    std::rethrow_exception(failure_);
  }
  auto work = c10::make_intrusive<StagedWork>(shared_from_this(), rank_, operation, std::move(stages),
                                              timeout, std::move(finish));
  for (const Stage& stage : work->stages) {
    work->tickets.push_back(submitted_[static_cast<size_t>(stage.channel)]++);
  }
  pending_.push_back(work);
  progress();
  return work;
}

bool Pipeline::progress() {
  if (aborted_ && !failure_) {
    fail(std::make_exception_ptr(
        CommError("comm", "aborted because a rank of the job is gone", CommError::Recovery::kRebuild)));
  }
  bool moved = false;
  try {
    // By index: nothing below adds or removes, but a work that ends drops tensors,
    // and with them anything.
    for (size_t i = 0; i < pending_.size(); ++i) {
      const auto work = pending_[i];
      moved |= advance(*work);
    }
  } catch (...) {
    fail(std::current_exception());
    return true;
  }
  while (!pending_.empty() && pending_.front()->done()) {
    pending_.pop_front();
  }
  return moved;
}

template <typename Step>
auto Pipeline::run_step(Channel channel, Step&& step) {
  try {
    return step();
  } catch (const CommError& error) {
    if (!error.failed_rank()) {
      throw;
    }
    const int rank = rank_in_group_(channel, *error.failed_rank());
    throw CommError("comm",
                    fmt::format("rank {} is gone, said by the ranks of its host, where it is rank {}: {}",
                                rank, *error.failed_rank(), error.what()),
                    CommError::Recovery::kRebuild, rank);
  }
}

bool Pipeline::advance(StagedWork& work) {
  bool moved = false;
  while (!work.done()) {
    if (work.running) {
      const bool completed = run_step(work.stages[work.next - 1].channel, [&] {
        if (!work.running->isCompleted()) {
          return false;
        }
        return work.running->wait(kNoTimeout);  // throws what went wrong
      });
      if (!completed) {
        return moved;
      }
      work.running = nullptr;
    }
    if (work.next == work.stages.size()) {
      work.succeed();
      return true;
    }
    const Stage& stage = work.stages[work.next];
    uint64_t& started = started_[static_cast<size_t>(stage.channel)];
    if (started != work.tickets[work.next]) {
      return moved;
    }
    ++started;
    ++work.next;
    work.running = run_step(stage.channel, stage.start);
    moved = true;
  }
  return moved;
}

void Pipeline::fail(std::exception_ptr failure) {
  failure_ = std::move(failure);
  for (const auto& work : std::exchange(pending_, {})) {
    if (!work->done()) {
      work->fail(failure_);
    }
  }
}

}  // namespace lockstep::comm
