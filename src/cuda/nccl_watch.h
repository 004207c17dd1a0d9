#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/plugin.h"

namespace lockstep::cuda {

// Notices, explains and aborts an NCCL collective that does not end: its kernel would spin for
// ever, and the host with it when it reads a result.
//
// c10d's watchdog ends the process a minute after the timeout, without naming the rank that caused
// it, and has one timeout for all operations. This class reports to the group, by
// PluginRequest::failure, and then aborts; the next operation throws.
//
// Every rank counts the collectives that it started, and puts the count into the store from time to
// time. A rank whose collective times out reads the counts of all: ranks with a smaller count did
// not take part. It writes the cause to the store before it aborts, for ranks whose operations fail
// only because its connections end.
//
// Thread-safe. It has a thread.
class NcclWatch {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Work = c10d::ProcessGroupNCCL::WorkNCCL;

  // `abort` is called from this object's thread, at most once.
  NcclWatch(const comm::PluginRequest& request, std::function<void()> abort);
  ~NcclWatch() { stop(); }
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Of operations that set no timeout.
  Milliseconds default_timeout() const { return request_.timeout; }

  // Runs `call`, which starts a collective, or a message if `peer` is the other rank, and watches
  // both the call and the work that it returns: the first use of an NCCL connection blocks in the
  // call. `operation` is a literal.
  template <typename Call>
  c10::intrusive_ptr<c10d::Work> watch(const char* operation, Milliseconds timeout, std::optional<int> peer,
                                       const Call& call) {
    const std::optional<Place> place = begin(operation, timeout, peer);
    try {
      auto work = call();
      if (place) attach(*place, work);
      return work;
    } catch (...) {
      if (place) forget(*place);
      throw;
    }
  }

  // Watches all work on the current stream so far as one collective, with the default timeout.
  void add_stream(const char* operation);

  // Blocks until all watched operations have ended. False: the group failed.
  bool drain();
  // Ends the thread: nothing is reported or aborted afterwards.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::optional<Work> work;  // a copy, which keeps no result alive; empty before the call returned
    std::shared_ptr<at::cuda::CUDAEvent> event;  // in place of a work, at the end of a stream
    const char* operation;
    Milliseconds timeout;
    std::optional<int> peer;
    uint64_t index;  // among the collectives of the group, from 1
    Clock::time_point started;
  };

  using Place = std::list<Entry>::iterator;

  // nullopt while a graph is recorded: the recorded operations run later, many times, and their
  // events cannot be queried.
  std::optional<Place> begin(const char* operation, Milliseconds timeout, std::optional<int> peer);
  void attach(Place place, const c10::intrusive_ptr<c10d::Work>& work);
  void forget(Place place);
  Place erase(Place place) LOCKSTEP_REQUIRES(mutex_);

  void run();
  // Removes the entries that have ended. Returns the failure of one, or the departure of a rank.
  std::optional<comm::DeviceFailure::Report> check_entries() LOCKSTEP_REQUIRES(mutex_);
  static bool has_ended(Entry& entry);
  std::optional<Entry> overdue() const LOCKSTEP_REQUIRES(mutex_);
  comm::DeviceFailure::Report explain(const Entry& entry) const;
  // Why a collective does not end, and the rank that causes it, if it is one.
  struct Cause {
    std::optional<int> rank;
    std::string text;
  };
  Cause find_cause(const Entry& entry) const;
  comm::DeviceFailure::Report with_cause_of_others(comm::DeviceFailure::Report report) const;
  void publish();

  const comm::PluginRequest request_;
  const std::function<void()> abort_;

  base::Mutex mutex_;
  base::Condition changed_;
  std::list<Entry> entries_ LOCKSTEP_GUARDED_BY(mutex_);
  uint64_t started_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  uint64_t published_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  Clock::time_point last_publish_ LOCKSTEP_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> departure_seen_ LOCKSTEP_GUARDED_BY(mutex_);
  bool stopping_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool over_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // the thread has ended

  std::future<void> publishing_;  // used by thread_, and by stop() after its end

  std::thread thread_;
};

}  // namespace lockstep::cuda
