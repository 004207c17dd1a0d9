#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/unique_fd.h"

namespace lockstep::base {

// Waits for descriptors and timers and runs their callbacks. One thread: only post() may be called from
// other threads than the one that runs the loop. Callbacks may call every function of the loop, also
// about their own descriptor or timer.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  // events: what epoll(7) reports; EPOLLERR and EPOLLHUP are always reported.
  using FdCallback = std::function<void(uint32_t events)>;
  using Timer = std::pair<Clock::time_point, uint64_t>;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls back while fd is ready for any of the events (EPOLLIN, EPOLLOUT), level-triggered. The caller
  // owns the descriptor and calls forget() before closing it.
  void watch(int fd, uint32_t events, FdCallback callback);
  // Sets other events for a watched descriptor; 0 leaves only EPOLLERR and EPOLLHUP.
  void change(int fd, uint32_t events);
  void forget(int fd);

  // Calls back once, at or soon after the given time.
  Timer at(Clock::time_point time, std::function<void()> callback);
  Timer after(Clock::duration delay, std::function<void()> callback) {
    return at(Clock::now() + delay, std::move(callback));
  }
  // No-op for a timer that has run or was cancelled.
  void cancel(const Timer& timer);

  // Calls back soon, on the loop's thread and in the order of the calls. Thread-safe.
  void post(std::function<void()> callback) LOCKSTEP_EXCLUDES(posted_mutex_);

  // Runs until stop(). An exception of a callback leaves run(), which may be called again.
  void run();
  void stop() { stopped_ = true; }
  // Waits once for events or a timer, at most max_wait, and runs their callbacks.
  void run_once(Clock::duration max_wait);

 private:
  int wait_ms(Clock::duration max_wait) const;
  void serve_timers();
  void serve_posted() LOCKSTEP_EXCLUDES(posted_mutex_);

  UniqueFd epoll_;
  UniqueFd posted_fd_;  // readable while posted_ is not empty
  Mutex posted_mutex_;
  std::deque<std::function<void()>> posted_ LOCKSTEP_GUARDED_BY(posted_mutex_);
  // Shared, so that a callback stays alive while it forgets its own descriptor.
  std::unordered_map<int, std::shared_ptr<FdCallback>> callbacks_;
  std::map<Timer, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::base
