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
#include "base/trace.h"
#include "comm/argument_check.h"
#include "comm/communicator_internal.h"
#include "comm/failure.h"
#include "comm/lifeline.h"
#include "comm/transport.h"

// The inside of Communicator and Work, for the sources of comm and its tests. Other layers use
// communicator_internal.h.
namespace lockstep {

namespace comm {

// Makes a group; make_communicator, connect and subgroup end here. Collective. `lifeline` is null
// for a group that is not a whole job's: its other ranks may not be Lockstep's.
Communicator make_group(TransportRequest request, std::shared_ptr<Lifeline> lifeline);

// Communicator::connect, with TransportRequest's host_identity.
Communicator connect_job(const RankMap& map, const CommunicatorOptions& options,
                         const std::string& host_identity);

}  // namespace comm

// The group behind the handles. Used by one thread at a time.
class Communicator::Impl : public std::enable_shared_from_this<Communicator::Impl> {
 public:
  using Milliseconds = std::chrono::milliseconds;

  Impl(comm::TransportRequest request, comm::Transport transport, std::shared_ptr<comm::Lifeline> lifeline);
  // Closes the group; logs what fails.
  ~Impl();

  int rank() const { return request_.rank; }
  int size() const { return request_.size; }
  const comm::Transport& transport() const { return transport_; }
  const CommunicatorOptions& options() const { return request_.options; }
  // comm::device_of()
  at::Device device() const;

  comm::ArgumentCheck check(std::string_view operation) const {
    return comm::ArgumentCheck(operation, rank(), size(), transport_);
  }
  // The Lockstep error for a failure, with the rank that caused it if that is known.
  std::exception_ptr explain(std::exception_ptr failure, std::string_view operation, Timeout timeout) const;

  // Throws what explain() makes of a failure that the device has reported, if any.
  void throw_if_failed(std::string_view operation, Timeout timeout) const {
    if (device_group_) device_group_->throw_if_failed(operation, timeout);
    if (transport_.failure && has_failed()) throw_failure(operation, timeout);
  }
  // Makes a host group fail with the device group whose data it describes: ranks must not agree
  // on a checkpoint of weights that a broken collective left behind.
  void follow(std::shared_ptr<const Impl> device_group) { device_group_ = std::move(device_group); }

  // Starts `body(backend, timeout)`, which returns a c10d::Work. `operation` is a literal: the
  // Work refers to it. `bytes` as in comm::Call.
  template <typename Body>
  Work start(std::string_view operation, int64_t bytes, Timeout timeout, Body&& body);
  // The same for `body(backend)` of send and recv, whose c10d calls take no timeout.
  template <typename Body>
  Work start_message(std::string_view operation, Timeout timeout, Body&& body);

  // comm::observe(), comm::stop_observing()
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
  std::exception_ptr name_departed_rank(const CommError& error, std::string_view operation) const;
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

// Reports to the launcher of this process that the process is inside a collective: from start()
// until the collective has succeeded, or until its last handle is gone. Adds this time to the trace.
class ReportedCollective {
 public:
  ReportedCollective() = default;
  ReportedCollective(const ReportedCollective&) = delete;
  ReportedCollective& operator=(const ReportedCollective&) = delete;
  ~ReportedCollective() { finish(); }

  // to_launcher: false for collectives that go on after wait() and report their progress themselves.
  void start(std::string_view operation, bool to_launcher = true) {
    running_ = true;
    to_launcher_ = to_launcher;
    if (base::Trace::of_process().recording()) {
      operation_ = operation;
      began_ = base::Trace::Clock::now();
    }
    if (to_launcher) base::Progress::of_process().collective_started(operation);
  }
  void finish() {
    if (!running_) return;
    if (to_launcher_) base::Progress::of_process().collective_finished();
    // It runs in the background while others do.
    if (!operation_.empty())
      base::Trace::of_process().add("collective", operation_, began_, /*overlaps=*/true);
    operation_.clear();
    running_ = false;
  }
  // Reports the collective as finished; resume() reports it as a new one.
  void pause() {
    paused_ = running_;
    finish();
  }
  void resume(std::string_view operation) {
    if (paused_) start(operation, to_launcher_);
    paused_ = false;
  }

 private:
  bool running_ = false;
  bool paused_ = false;
  bool to_launcher_ = true;
  std::string operation_;  // for the trace; empty: none was recorded at the start
  base::Trace::Clock::time_point began_;
};

}  // namespace comm

struct Work::Impl {
  comm::ReportedCollective reported;
  std::shared_ptr<Communicator::Impl> group;
  std::string_view operation;
  std::chrono::milliseconds timeout;
  // For c10d's wait(): kNoTimeout if the operation was started with its timeout.
  std::chrono::milliseconds wait_timeout = kNoTimeout;
  c10::intrusive_ptr<c10d::Work> work;  // null after success
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
Work Communicator::Impl::start_message(std::string_view operation, Timeout timeout, Body&& body) {
  throw_if_failed(operation, timeout);
  auto work = new_work(operation, timeout);
  // With a timeout NCCL would block the thread; CUDA operations must only order streams.
  work->wait_timeout = transport_.devices == comm::Transport::Devices::kCuda ? kNoTimeout : work->timeout;
  try {
    work->work = body(*transport_.backend);
  } catch (...) {
    std::rethrow_exception(explain(std::current_exception(), operation, timeout));
  }
  return Work(std::move(work));
}

}  // namespace lockstep
