#include "base/trace.h"

#include <unistd.h>

#include <utility>

namespace lockstep::base {

Trace& Trace::of_process() {
  // Never destroyed: threads of the transport may end after main().
  static Trace* const trace = new Trace;
  return *trace;
}

void Trace::start() {
  const MutexLock lock(mutex_);
  spans_.clear();
  start_ = Clock::now();
  recording_.store(true, std::memory_order_relaxed);
}

std::vector<Trace::Span> Trace::stop() {
  const MutexLock lock(mutex_);
  recording_.store(false, std::memory_order_relaxed);
  return std::exchange(spans_, {});
}

void Trace::add(const char* category, std::string_view name, Clock::time_point begin, bool overlaps) {
  if (!recording()) return;
  const Clock::time_point end = Clock::now();
  const int thread = ::gettid();
  const MutexLock lock(mutex_);
  if (!recording() || begin < start_) return;
  spans_.push_back({std::string(name), category, begin, end, thread, overlaps});
}

}  // namespace lockstep::base
