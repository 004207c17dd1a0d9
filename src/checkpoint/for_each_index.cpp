#include "checkpoint/for_each_index.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "base/mutex.h"

namespace lockstep::checkpoint {
namespace {

constexpr int kMaxDefaultThreads = 8;

size_t usable_cpus() {
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  if (::sched_getaffinity(0, sizeof(cpus), &cpus) != 0) return 1;
  return static_cast<size_t>(std::clamp(CPU_COUNT(&cpus), 1, kMaxDefaultThreads));
}

class FirstError {
 public:
  void set(std::exception_ptr error) {
    const base::MutexLock lock(mutex_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() {
    const base::MutexLock lock(mutex_);
    if (error_) std::rethrow_exception(error_);
  }

 private:
  base::Mutex mutex_;
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace

void for_each_index(size_t count, int threads, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next{0};
  FirstError error;
  const auto run = [&] {
    try {
      for (size_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) work(i);
    } catch (...) {
      next = count;
      error.set(std::current_exception());
    }
  };
  const size_t wanted = threads > 0 ? static_cast<size_t>(threads) : usable_cpus();
  std::vector<std::thread> others;
  try {
    for (size_t i = 1; i < std::min(wanted, count); ++i) others.emplace_back(run);
  } catch (const std::system_error&) {
    // No more threads are allowed: those that there are do the work.
  }
  run();
  for (std::thread& thread : others) thread.join();
  error.rethrow();
}

}  // namespace lockstep::checkpoint
