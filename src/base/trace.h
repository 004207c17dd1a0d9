#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <vector>

#include "base/mutex.h"

namespace lockstep::base {

// Records what this process does, and when, between start() and stop(). While nothing is recorded a call
// costs one load. Thread-safe.
class Trace {
 public:
  using Clock = std::chrono::steady_clock;

  struct Span {
    std::string name;
    const char* category = "";  // a literal: "phase", "operator", "collective", "module"
    Clock::time_point begin;
    Clock::time_point end;
    int thread = 0;  // the system's id
    // Spans of one thread nest, except those that may overlap: collectives that run in the background.
    bool overlaps = false;
  };

  // One per process, as its Progress.
  static Trace& of_process();

  bool recording() const { return recording_.load(std::memory_order_relaxed); }
  // Forgets earlier spans.
  void start();
  // The spans, in the order of their ends.
  std::vector<Span> stop();
  // Adds a span of this thread that ends now. Ignored if nothing is recorded, and if it began before start().
  void add(const char* category, std::string_view name, Clock::time_point begin, bool overlaps = false);

 private:
  Trace() = default;

  std::atomic<bool> recording_{false};
  Mutex mutex_;
  Clock::time_point start_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Span> spans_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::base
