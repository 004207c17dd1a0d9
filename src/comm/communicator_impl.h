#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/error.h>

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/progress.h"
#include "comm/argument_check.h"
#include "comm/call_observer.h"
#include "comm/failure.h"
#include "comm/lifeline.h"
#include "comm/transport.h"

namespace lockstep {

namespace comm {

// Makes a group; the entry of make_communicator, connect and subgroup. Collective.
// `lifeline` is null where the group is not a whole job's: others may be no ranks of
// Lockstep.
Communicator make_group(TransportRequest request, std::shared_ptr<Lifeline> lifeline);

// A new group of the same ranks that exchanges what is in host memory, whatever this one's
// backend is: for threads beside the training, whose exchange must not stand in line with
// the GPU's work. Collective.
Communicator make_host_group(const Communicator& group);

// CommError where a collective of the group has failed on its device although its wait()
// returned: call it after reading a result on the host. Costs nothing on the CPU.
void throw_if_failed(const Communicator& group, std::string_view operation);
// A graph that holds collectives of the group was started on this thread's stream: they have the
// group's timeout from now on. Every rank calls it. `operation` is a literal.
void watch_graph(const Communicator& group, const char* operation);

// all_gather_bytes for the root alone: what all ranks have is in the memory of one. Empty
// elsewhere. Collective.
std::vector<std::string> gather_bytes(const Communicator& group, const std::string& bytes, int root);

// Communicator::connect, with TransportRequest's host_identity.
Communicator connect_job(const RankMap& map, const CommunicatorOptions& options,
                         const std::string& host_identity);

}  // namespace comm

// The group behind the handles. Used by one thread at a time.
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Impl(comm::TransportRequest request, comm::Transport transport, std::shared_ptr<comm::Lifeline> lifeline);
  ~Impl();

  int rank() const { return request_.rank; }
  int size() const { return request_.size; }
  const comm::Transport& transport() const { return transport_; }
  const CommunicatorOptions& options() const { return request_.options; }
  // Where tensors that carry bytes and sizes have to be.
  at::Device device() const;

  comm::ArgumentCheck check(std::string_view operation) const {
    return comm::ArgumentCheck(operation, rank(), size(), transport_);
  }
  // What went wrong, with the name of the rank that caused it where that is known.
  std::exception_ptr explain(std::exception_ptr failure, std::string_view operation, Timeout timeout) const;
  comm::OperationContext context(std::string_view operation, Timeout timeout) const {
    return {operation, transport_.name, rank(), size(), timeout.value_or(request_.options.timeout)};
  }

  // Throws what explain() makes of a failure that the device has reported, if there is one.
  void throw_if_failed(std::string_view operation, Timeout timeout) const {
    if (device_group_) device_group_->throw_if_failed(operation, timeout);
    if (transport_.failure && has_failed()) throw_failure(operation, timeout);
  }
  // A host group fails with the device group whose data it describes: a checkpoint of weights
  // that a broken collective left behind must not be agreed on.
  void follow(std::shared_ptr<const Impl> device_group) { device_group_ = std::move(device_group); }

  // Starts `body(backend, timeout)`, which returns a c10d::Work. `operation` must
  // outlive the Work: a literal. `bytes` as in comm::Call.
  template <typename Body>
  Work start(std::string_view operation, int64_t bytes, Timeout timeout, Body&& body);
  // The same for `body(backend)` of send and recv, whose c10d calls take no timeout.
  template <typename Body>
  Work start_with_peer(std::string_view operation, Timeout timeout, Body&& body);

  // While there is an observer every collective is waited for, on its device too, before it
  // returns: one that goes on beside others has no time of its own. Send and recv are not
  // observed: two ranks that first send would wait for each other. There is one observer: the
  // last.
  void observe(std::shared_ptr<comm::CallObserver> observer) { observer_ = std::move(observer); }
  void stop_observing(const comm::CallObserver& observer) {
    if (observer_.get() == &observer) observer_ = nullptr;
  }

  // The group of these ranks, which include this one.
  Communicator make_subgroup(const std::vector<int>& ranks, int index_in_group,
                             const CommunicatorOptions& options) const;
  int next_subgroup() { return num_subgroups_++; }

  void meet(const std::string& purpose, Milliseconds patience);

 private:
  void abort_for(int dead_rank) const;
  bool has_failed() const;
  [[noreturn]] void throw_failure(std::string_view operation, Timeout timeout) const;
  std::exception_ptr name_the_departed(const CommError& error, std::string_view operation) const;
  void wait_for_all(const std::string& purpose, const std::string& meeting, Milliseconds patience) const;
  std::shared_ptr<Work::Impl> new_work(std::string_view operation, Timeout timeout);
  void finish_observed(Work& work, comm::Call call, std::chrono::steady_clock::time_point began) const;

  const comm::TransportRequest request_;
  const comm::Transport transport_;
  const std::shared_ptr<comm::Lifeline> lifeline_;
  std::optional<comm::Lifeline::Subscription> subscription_;
  std::shared_ptr<comm::CallObserver> observer_;
  std::shared_ptr<const Impl> device_group_;
  int num_subgroups_ = 0;
  std::map<std::string, int> num_meetings_;  // by purpose
};

namespace comm {

// Tells the launcher of this process that it is inside a collective, from start to
// success, or to the moment nobody can wait for it any more.
class ToldCollective {
 public:
  ToldCollective() = default;
  ToldCollective(const ToldCollective&) = delete;
  ToldCollective& operator=(const ToldCollective&) = delete;
  ~ToldCollective() { finish(); }

  void start(std::string_view operation) {
    running_ = true;
    base::Progress::of_process().collective_started(operation);
  }
  void finish() {
    if (running_) base::Progress::of_process().collective_finished();
    running_ = false;
  }
  // Meanwhile it counts as finished, and from resume() on as another one.
  void pause() {
    paused_ = running_;
    finish();
  }
  void resume(std::string_view operation) {
    if (paused_) start(operation);
    paused_ = false;
  }

 private:
  bool running_ = false;
  bool paused_ = false;
};

}  // namespace comm

struct Work::Impl {
  comm::ToldCollective told;
  std::shared_ptr<Communicator::Impl> group;
  std::string_view operation;
  std::chrono::milliseconds timeout;
  // Handed to c10d's wait(): kNoTimeout where the started operation knows its own.
  std::chrono::milliseconds wait_timeout = kNoTimeout;
  c10::intrusive_ptr<c10d::Work> work;  // null once it has succeeded
  std::exception_ptr failure;
};

template <typename Body>
Work Communicator::Impl::start(std::string_view operation, int64_t bytes, Timeout timeout, Body&& body) {
  throw_if_failed(operation, timeout);
  auto work = new_work(operation, timeout);
  const auto began = observer_ ? std::chrono::steady_clock::now() : std::chrono::steady_clock::time_point();
  try {
    work->work = body(*transport_.backend, work->timeout);
  } catch (...) {
    std::rethrow_exception(explain(std::current_exception(), operation, timeout));
  }
  Work started(std::move(work));
  if (observer_) finish_observed(started, {operation, bytes}, began);
  return started;
}

template <typename Body>
Work Communicator::Impl::start_with_peer(std::string_view operation, Timeout timeout, Body&& body) {
  throw_if_failed(operation, timeout);
  auto work = new_work(operation, timeout);
  // NCCL would block the thread, where CUDA operations shall only order streams.
  work->wait_timeout = transport_.devices == comm::Transport::Devices::kCuda ? kNoTimeout : work->timeout;
  try {
    work->work = body(*transport_.backend);
  } catch (...) {
    std::rethrow_exception(explain(std::current_exception(), operation, timeout));
  }
  return Work(std::move(work));
}

}  // namespace lockstep
