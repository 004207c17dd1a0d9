#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/core/Device.h>
#include <c10/util/intrusive_ptr.h>

#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "comm/plugin.h"

namespace lockstep::cuda {

// Sees to it that a collective of NCCL which does not end is noticed, explained and aborted:
// its kernel would spin for ever, and the host with it when it reads a result.
//
// c10d's own watchdog ends the process, without saying which rank is to blame, a minute after
// the timeout; and it knows one timeout for all operations. This one reports to the group, by
// PluginRequest::failure, and then aborts, after which the next operation throws.
//
// Every rank counts the collectives that it started, and puts the count into the store from
// time to time. A rank whose collective times out reads the counts of all: those that are
// behind it did not take part. It leaves the answer in the store before it aborts, for ranks
// that see no timeout of their own but the end of its connections.
//
// Thread-safe. One thread of its own.
class NcclWatch {
 public:
  using Milliseconds = std::chrono::milliseconds;
  using Work = c10d::ProcessGroupNCCL::WorkNCCL;

  // `abort` is called from the thread of this object, at most once.
  NcclWatch(const comm::PluginRequest& request, std::function<void()> abort);
  ~NcclWatch() { stop(); }
  NcclWatch(const NcclWatch&) = delete;
  NcclWatch& operator=(const NcclWatch&) = delete;

  // Of operations that have no timeout of their own.
  Milliseconds default_timeout() const { return request_.timeout; }

  // Runs `call`, which starts a collective, or a message where `peer` is the other rank, and
  // watches both the call and the work that it returns: where NCCL uses a connection for the
  // first time, the call itself waits for the peer. `operation` is a literal.
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

  // What the current stream was given so far, as one collective. It has the default timeout.
  void add_stream(const char* operation);

  // Waits until all that was added has ended. False: the group failed.
  bool drain();
  // Nothing is reported or aborted after it.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  struct Entry {
    std::optional<Work> work;  // a copy, which keeps no result alive; none before the call returned
    std::shared_ptr<at::cuda::CUDAEvent> event;  // in place of a work, at the end of a stream
    const char* operation;
    Milliseconds timeout;
    std::optional<int> peer;
    uint64_t index;  // among the collectives of the group, from 1
    Clock::time_point started;
  };

  using Place = std::list<Entry>::iterator;

  // Nothing while a graph is recorded: what is recorded runs later, many times, and its events
  // cannot be asked.
  std::optional<Place> begin(const char* operation, Milliseconds timeout, std::optional<int> peer);
  void attach(Place place, const c10::intrusive_ptr<c10d::Work>& work);
  void forget(Place place);
  Place erase(Place place);

  void run();
  // What is wrong now, if anything is. REQUIRES: mutex_ is held.
  std::optional<comm::DeviceFailure::Report> look();
  static bool has_ended(Entry& entry);
  std::optional<Entry> overdue() const;
  comm::DeviceFailure::Report explain(const Entry& entry) const;
  // Why a collective does not end, and which rank is to blame where it is one.
  struct Cause {
    std::optional<int> rank;
    std::string text;
  };
  Cause find_cause(const Entry& entry) const;
  comm::DeviceFailure::Report with_cause_of_others(comm::DeviceFailure::Report report) const;
  void publish();

  const comm::PluginRequest request_;
  const std::function<void()> abort_;

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::list<Entry> entries_;
  uint64_t started_ = 0;
  uint64_t published_ = 0;
  Clock::time_point last_publish_;
  std::optional<Clock::time_point> departure_seen_;
  bool stopping_ = false;
  bool over_ = false;

  std::future<void> publishing_;  // of thread_ alone

  std::thread thread_;
};

}  // namespace lockstep::cuda
