#pragma once

#include <deque>
#include <functional>
#include <utility>

#include "base/event_loop.h"

namespace lockstep::launcher {

// Calls to a listener, one after the other from the event loop and never from inside
// the call that caused them.
class ListenerQueue {
 public:
  explicit ListenerQueue(base::EventLoop& loop) : loop_(loop) {}
  ListenerQueue(const ListenerQueue&) = delete;
  ListenerQueue& operator=(const ListenerQueue&) = delete;
  ~ListenerQueue() { loop_.cancel(timer_); }

  void push(std::function<void()> call) {
    calls_.push_back(std::move(call));
    if (calls_.size() == 1) schedule();
  }

  // Forgets the calls that have not been made.
  void clear() {
    calls_.clear();
    loop_.cancel(timer_);
  }

 private:
  void schedule() {
    timer_ = loop_.at(base::EventLoop::Clock::now(), [this] { run_one(); });
  }
  void run_one() {
    const std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    // Before the call: the last one may destroy this queue.
    if (!calls_.empty()) schedule();
    call();
  }

  base::EventLoop& loop_;
  base::EventLoop::Timer timer_;
  std::deque<std::function<void()>> calls_;
};

}  // namespace lockstep::launcher
