#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "comm/backends.h"
#include "comm/failure.h"

namespace lockstep::comm {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using BackendPtr = c10::intrusive_ptr<c10d::Backend>;

// How a polling loop waits: it yields the processor at once and, after many polls without
// progress, sleeps, because network threads need the processor more.
class Backoff {
 public:
  void progressed() { idle_polls_ = 0; }

  void pause() {
    if (++idle_polls_ > kYields) {
      std::this_thread::sleep_for(kPause);
    } else {
      std::this_thread::yield();
    }
  }

 private:
  static constexpr int kYields = 500;
  static constexpr std::chrono::microseconds kPause{50};

  int idle_polls_ = 0;
};

// --- a pipeline of stages ---

// Groups that a collective passes through, in this order: to the leader of the host, between the
// leaders, back from the leader.
enum class Channel { kUp, kCross, kDown };
constexpr size_t kNumChannels = 3;

struct Stage {
  Channel channel;
  std::function<WorkPtr()> start;
};

// Runs collectives that are made of stages. All ranks of a channel must start its stages in one
// order, whatever the timing, so a stage waits until the stages of all earlier collectives on its
// channel have been started; different channels overlap. Progress is made only inside progress(),
// in the calling thread.
//
// Used by one thread at a time, except abort().
class Pipeline : public std::enable_shared_from_this<Pipeline> {
 public:
  // Turns a rank of a channel's group, which its CommError names, into a rank of the whole group.
  using RankInWholeGroup = std::function<int(Channel channel, int rank)>;
  Pipeline(int rank, RankInWholeGroup rank_in_whole_group)
      : rank_(rank), rank_in_whole_group_(std::move(rank_in_whole_group)) {}

  // `finish` runs after the last stage. Throws the failure of an earlier collective.
  WorkPtr submit(c10d::OpType operation, std::vector<Stage> stages, Milliseconds timeout,
                 std::function<void()> finish = {});

  // Starts the stages that can be started and completes those that are done. False: neither.
  bool progress();

  // Fails all pending and later collectives. From any thread.
  void abort() { aborted_ = true; }
  bool is_aborted() const { return aborted_; }

 private:
  class StagedWork;

  bool advance(StagedWork& work);
  // Starts a stage or polls it, and translates the rank in its error.
  template <typename Step>
  auto run_step(Channel channel, Step&& step);
  void fail(std::exception_ptr failure);

  const int rank_;
  const RankInWholeGroup rank_in_whole_group_;
  std::deque<c10::intrusive_ptr<StagedWork>> pending_;
  std::array<uint64_t, kNumChannels> submitted_{};  // number of stages of each channel
  std::array<uint64_t, kNumChannels> started_{};
  std::exception_ptr failure_;
  std::atomic<bool> aborted_ = false;
};

class Pipeline::StagedWork final : public c10d::Work {
 public:
  StagedWork(std::shared_ptr<Pipeline> pipeline, int rank, c10d::OpType operation, std::vector<Stage> stages,
             Milliseconds timeout, std::function<void()> finish)
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

  bool wait(Milliseconds timeout) override {
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    const auto deadline = Clock::now() + limit;
    for (Backoff backoff; !done();) {
      if (pipeline_->progress()) {
        backoff.progressed();
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
  // Progress, updated by the pipeline.
  std::vector<Stage> stages;
  std::vector<uint64_t> tickets;  // the place of each stage in its channel's order
  size_t next = 0;                // index of the next stage to start
  WorkPtr running;                // stage next - 1, while it runs

 private:
  std::function<void()> finish_;
  Milliseconds timeout_;
  bool done_ = false;
  std::exception_ptr failure_;
};

WorkPtr Pipeline::submit(c10d::OpType operation, std::vector<Stage> stages, Milliseconds timeout,
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
    // By index: nothing below adds or removes works, but a work that ends drops its tensors, whose
    // deleters may run any code.
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
    const int rank = rank_in_whole_group_(channel, *error.failed_rank());
    throw CommError("comm",
                    fmt::format("rank {} is gone, as the ranks of its host report, where it is rank {}: {}",
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
        return work.running->wait(kNoTimeout);  // throws the failure
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

// --- the backend ---

// A message inside a host, whose group does not notice that a rank of another host died: wait()
// throws when the pipeline is aborted.
class AbortableWork final : public c10d::Work {
 public:
  AbortableWork(int rank, c10d::OpType operation, WorkPtr inner, std::shared_ptr<const Pipeline> pipeline,
                Milliseconds timeout)
      : Work(rank, operation), inner_(std::move(inner)), pipeline_(std::move(pipeline)), timeout_(timeout) {}

  bool isCompleted() override { return inner_->isCompleted(); }
  bool isSuccess() const override { return inner_->isSuccess(); }
  std::exception_ptr exception() const override { return inner_->exception(); }

  bool wait(Milliseconds timeout) override {
    const auto limit = timeout == kNoTimeout ? timeout_ : timeout;
    const auto deadline = Clock::now() + limit;
    for (Backoff backoff; !inner_->isCompleted(); backoff.pause()) {
      if (pipeline_->is_aborted()) {
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

 private:
  const WorkPtr inner_;
  const std::shared_ptr<const Pipeline> pipeline_;
  const Milliseconds timeout_;
};

WorkPtr start_all_reduce(const BackendPtr& group, at::Tensor tensor, const c10d::ReduceOp& op,
                         Milliseconds timeout) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::AllreduceOptions options;
  options.reduceOp = op;
  options.timeout = timeout;
  return group->allreduce(tensors, options);
}

WorkPtr start_broadcast(const BackendPtr& group, at::Tensor tensor, int root, Milliseconds timeout) {
  std::vector<at::Tensor> tensors{std::move(tensor)};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = timeout;
  return group->broadcast(tensors, options);
}

WorkPtr start_all_gather(const BackendPtr& group, at::Tensor output, at::Tensor input, Milliseconds timeout) {
  c10d::AllgatherOptions options;
  options.timeout = timeout;
  return group->_allgather_base(output, input, options);
}

// Copies what the leaders gathered, with all hosts padded to the same size, into rank order.
void order_by_rank(const HostLayout& layout, const at::Tensor& gathered, const at::Tensor& output) {
  at::NoGradGuard no_grad;
  const at::Tensor from = gathered.view({layout.num_hosts(), layout.most_ranks_on_a_host(), -1});
  const at::Tensor to = output.view({layout.num_ranks(), -1});
  for (size_t rank = 0; rank < layout.host_of.size(); ++rank) {
    to[static_cast<int64_t>(rank)].copy_(from[layout.host_of[rank]][layout.local_rank_of[rank]]);
  }
}

class HierarchicalBackend final : public c10d::Backend {
 public:
  HierarchicalBackend(int rank, HostLayout layout, HierarchicalChannels channels, Milliseconds timeout);

  const std::string getBackendName() const override { return "hierarchical"; }
  void abort() override;
  bool supportsTensorAlloc(c10::DeviceIndex device) override {
    return channels_.up && channels_.up->supportsTensorAlloc(device);
  }
  at::Tensor allocateTensor(long size, at::TensorOptions options) override {
    return channels_.up->allocateTensor(size, options);
  }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override;
  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& options) override;
  WorkPtr barrier(const c10d::BarrierOptions& options) override;

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return channels_.flat->gather(outputs, inputs, options);
  }
  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return channels_.flat->scatter(outputs, inputs, options);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override {
    return channels_.flat->alltoall_base(output, input, output_splits, input_splits, options);
  }
  WorkPtr send(std::vector<at::Tensor>& tensors, int destination, int tag) override {
    if (!same_host(destination)) return channels_.flat->send(tensors, destination, tag);
    return abortable(c10d::OpType::SEND, channels_.up->send(tensors, local_rank_of(destination), tag));
  }
  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    if (!same_host(source)) return channels_.flat->recv(tensors, source, tag);
    return abortable(c10d::OpType::RECV, channels_.up->recv(tensors, local_rank_of(source), tag));
  }

 private:
  int host() const { return layout_.host_of[static_cast<size_t>(getRank())]; }
  bool same_host(int peer) const { return layout_.host_of[static_cast<size_t>(peer)] == host(); }
  int local_rank_of(int rank) const { return layout_.local_rank_of[static_cast<size_t>(rank)]; }
  Milliseconds limit(Milliseconds timeout) const {
    return timeout == c10d::kUnsetTimeout ? timeout_ : timeout;
  }

  WorkPtr abortable(c10d::OpType operation, WorkPtr message) const {
    return c10::make_intrusive<AbortableWork>(getRank(), operation, std::move(message), pipeline_, timeout_);
  }
  // The stages of an in-place all-reduce of `tensor`, which is scaled first for an average.
  std::vector<Stage> all_reduce_stages(at::Tensor tensor, const c10d::ReduceOp& op, Milliseconds timeout);
  // The last stage of a collective whose result is in the leader's `tensor`. `prepare` runs before
  // the stage starts, on every rank.
  Stage down_stage(at::Tensor tensor, Milliseconds timeout, std::function<void()> prepare = {});

  const HostLayout layout_;
  const HierarchicalChannels channels_;
  const Milliseconds timeout_;
  const std::shared_ptr<Pipeline> pipeline_;
};

HierarchicalBackend::HierarchicalBackend(int rank, HostLayout layout, HierarchicalChannels channels,
                                         Milliseconds timeout)
    : Backend(rank, layout.num_ranks()),
      layout_(std::move(layout)),
      channels_(std::move(channels)),
      timeout_(timeout),
      pipeline_(std::make_shared<Pipeline>(
          rank, [host = layout_.hosts[static_cast<size_t>(layout_.host_of[static_cast<size_t>(rank)])],
                 hosts = layout_.hosts](Channel channel, int of_channel) {
            const auto index = static_cast<size_t>(of_channel);
            return channel == Channel::kCross ? hosts[index].front() : host[index];
          })) {}

void HierarchicalBackend::abort() {
  pipeline_->abort();
  for (const BackendPtr& group : {channels_.up, channels_.down, channels_.cross, channels_.flat}) {
    if (group) {
      group->abort();
    }
  }
}

Stage HierarchicalBackend::down_stage(at::Tensor tensor, Milliseconds timeout,
                                      std::function<void()> prepare) {
  return {Channel::kDown, [group = channels_.down, tensor, timeout, prepare]() -> WorkPtr {
            if (prepare) {
              prepare();
            }
            if (!group) {
              return c10::make_intrusive<CompletedWork>(0, c10d::OpType::BROADCAST);
            }
            return start_broadcast(group, tensor, 0, timeout);
          }};
}

std::vector<Stage> HierarchicalBackend::all_reduce_stages(at::Tensor tensor, const c10d::ReduceOp& op,
                                                          Milliseconds timeout) {
  c10d::ReduceOp plain = op;
  if (op.op_ == c10d::ReduceOp::AVG) {
    at::NoGradGuard no_grad;
    tensor.mul_(1.0 / getSize());
    plain = c10d::ReduceOp::SUM;
  }
  std::vector<Stage> stages;
  for (const auto& [channel, group] :
       {std::pair(Channel::kUp, channels_.up), {Channel::kCross, channels_.cross}}) {
    if (group) {
      stages.push_back({channel, [group = group, tensor, plain, timeout] {
                          return start_all_reduce(group, tensor, plain, timeout);
                        }});
    }
  }
  stages.push_back(down_stage(tensor, timeout));
  return stages;
}

WorkPtr HierarchicalBackend::allreduce(std::vector<at::Tensor>& tensors,
                                       const c10d::AllreduceOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  return pipeline_->submit(c10d::OpType::ALLREDUCE,
                           all_reduce_stages(tensors.at(0), options.reduceOp, timeout), timeout);
}

WorkPtr HierarchicalBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                  const c10d::ReduceScatterOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const at::Tensor whole = input.detach().clone();
  return pipeline_->submit(c10d::OpType::_REDUCE_SCATTER_BASE,
                           all_reduce_stages(whole, options.reduceOp, timeout), timeout,
                           [output, whole, rank = getRank(), size = getSize()] {
                             at::NoGradGuard no_grad;
                             output.view(-1).copy_(whole.view({size, -1})[rank]);
                           });
}

WorkPtr HierarchicalBackend::broadcast(std::vector<at::Tensor>& tensors,
                                       const c10d::BroadcastOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const at::Tensor tensor = tensors.at(0);
  const auto root = static_cast<int>(options.rootRank);
  std::vector<Stage> stages;
  if (same_host(root) && channels_.up) {
    stages.push_back({Channel::kUp, [group = channels_.up, tensor, local = local_rank_of(root), timeout] {
                        return start_broadcast(group, tensor, local, timeout);
                      }});
  }
  if (channels_.cross) {
    const int root_host = layout_.host_of[static_cast<size_t>(root)];
    stages.push_back({Channel::kCross, [group = channels_.cross, tensor, root_host, timeout] {
                        return start_broadcast(group, tensor, root_host, timeout);
                      }});
  }
  if (!same_host(root)) {
    stages.push_back(down_stage(tensor, timeout));
  }
  return pipeline_->submit(c10d::OpType::BROADCAST, std::move(stages), timeout);
}

WorkPtr HierarchicalBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                             const c10d::AllgatherOptions& options) {
  const Milliseconds timeout = limit(options.timeout);
  const int64_t block = input.numel();
  const auto num_local = static_cast<int64_t>(layout_.hosts[static_cast<size_t>(host())].size());
  const int64_t most_local = layout_.most_ranks_on_a_host();
  // Leaders exchange hosts padded to the same size; the padding is never read.
  const at::Tensor padded = at::empty({(channels_.cross ? most_local : num_local) * block}, input.options());
  const at::Tensor local = padded.narrow(0, 0, num_local * block);
  std::vector<Stage> stages;
  if (channels_.up) {
    stages.push_back({Channel::kUp, [group = channels_.up, local, input, timeout] {
                        return start_all_gather(group, local, input, timeout);
                      }});
  } else {
    local.copy_(input.view(-1));
  }
  std::function<void()> order;
  if (channels_.cross) {
    const bool regular = layout_.is_regular();
    const at::Tensor gathered =
        regular ? output : at::empty({layout_.num_hosts() * most_local * block}, input.options());
    stages.push_back({Channel::kCross, [group = channels_.cross, gathered, padded, timeout] {
                        return start_all_gather(group, gathered, padded, timeout);
                      }});
    if (!regular) {
      order = [layout = layout_, gathered, output] { order_by_rank(layout, gathered, output); };
    }
  }
  stages.push_back(down_stage(output, timeout, order));
  return pipeline_->submit(c10d::OpType::_ALLGATHER_BASE, std::move(stages), timeout);
}

WorkPtr HierarchicalBackend::barrier(const c10d::BarrierOptions& options) {
  c10d::BarrierOptions inner = options;
  inner.timeout = limit(options.timeout);
  std::vector<Stage> stages;
  for (const auto& [channel, group] : {std::pair(Channel::kUp, channels_.up),
                                       {Channel::kCross, channels_.cross},
                                       {Channel::kDown, channels_.down}}) {
    if (group) {
      stages.push_back({channel, [group = group, inner] { return group->barrier(inner); }});
    }
  }
  return pipeline_->submit(c10d::OpType::BARRIER, std::move(stages), inner.timeout);
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_hierarchical_backend(int rank, HostLayout layout,
                                                            HierarchicalChannels channels,
                                                            Milliseconds timeout) {
  return c10::make_intrusive<HierarchicalBackend>(rank, std::move(layout), std::move(channels), timeout);
}

}  // namespace lockstep::comm
