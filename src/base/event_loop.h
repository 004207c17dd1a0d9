#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/unique_fd.h"

namespace lockstep::base {

// Waits for descriptors and points in time, and calls whoever asked for them. One
// thread: everything here but post() is called from the thread that runs the loop.
// Callbacks may watch, forget, schedule, cancel and stop at will, also themselves.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  // events: what epoll(7) reports; EPOLLERR and EPOLLHUP come unasked.
  using FdCallback = std::function<void(uint32_t events)>;
  using Timer = std::pair<Clock::time_point, uint64_t>;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  // Calls back while fd is ready for any of events (EPOLLIN, EPOLLOUT), level
  // triggered. The descriptor stays the caller's, who forgets it before closing it.
  void watch(int fd, uint32_t events, FdCallback callback);
  // Other events for a watched descriptor; 0 keeps only EPOLLERR and EPOLLHUP.
  void change(int fd, uint32_t events);
  void forget(int fd);

  // Calls back once, at or soon after the given time.
  Timer at(Clock::time_point time, std::function<void()> callback);
  Timer after(Clock::duration delay, std::function<void()> callback) {
    return at(Clock::now() + delay, std::move(callback));
  }
  // No-op for a timer that has run or was cancelled.
  void cancel(const Timer& timer);

  // Calls back soon, from the loop's thread and in the order of the calls. Other threads may
  // call this while the loop exists.
  void post(std::function<void()> callback);

  // Runs until stop(). What a callback throws leaves run(), which may be called again.
  void run();
  void stop() { stopped_ = true; }
  // One round: waits for the next event or timer, at most max_wait, and serves it.
  void run_once(Clock::duration max_wait);

 private:
  int wait_ms(Clock::duration max_wait) const;
  void serve_timers();
  void serve_posted();

  UniqueFd epoll_;
  UniqueFd posted_fd_;  // readable while something is posted
  std::mutex posted_mutex_;
  std::deque<std::function<void()>> posted_;  // guarded by posted_mutex_
  // Shared, so that a callback survives while it forgets its own descriptor.
  std::unordered_map<int, std::shared_ptr<FdCallback>> callbacks_;
  std::map<Timer, std::function<void()>> timers_;
  uint64_t next_timer_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::base
