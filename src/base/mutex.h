#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// The one lock of this tree. clang checks at compile time that data marked LOCKSTEP_GUARDED_BY(mutex_)
// are accessed only while mutex_ is held. g++ ignores the attributes.
#if defined(__clang__)
#define LOCKSTEP_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define LOCKSTEP_THREAD_ATTRIBUTE(x)
#endif

// On a data member: the mutex that protects it. PT: the mutex protects what the pointer points to.
#define LOCKSTEP_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(guarded_by(mutex))
#define LOCKSTEP_PT_GUARDED_BY(mutex) LOCKSTEP_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
// On a function: the caller holds the mutex, or must not hold it.
#define LOCKSTEP_REQUIRES(mutex) LOCKSTEP_THREAD_ATTRIBUTE(requires_capability(mutex))
#define LOCKSTEP_EXCLUDES(mutex) LOCKSTEP_THREAD_ATTRIBUTE(locks_excluded(mutex))

namespace lockstep::base {

class LOCKSTEP_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { mutex_.lock(); }
  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { mutex_.unlock(); }
  bool try_lock() LOCKSTEP_THREAD_ATTRIBUTE(try_acquire_capability(true)) { return mutex_.try_lock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex during its lifetime. unlock() releases it until lock().
class LOCKSTEP_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  ~MutexLock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) = default;
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() LOCKSTEP_THREAD_ATTRIBUTE(release_capability()) { lock_.unlock(); }
  void lock() LOCKSTEP_THREAD_ATTRIBUTE(acquire_capability()) { lock_.lock(); }

 private:
  friend class Condition;
  std::unique_lock<std::mutex> lock_;
};

// A condition variable for a MutexLock. The waits return spuriously: call them in a loop on the
// condition itself, in the function that holds the lock, where clang can check the condition.
class Condition {
 public:
  void wait(MutexLock& lock) { condition_.wait(lock.lock_); }
  // False: the deadline has passed.
  template <typename Clock, typename Duration>
  bool wait_until(MutexLock& lock, const std::chrono::time_point<Clock, Duration>& deadline) {
    return condition_.wait_until(lock.lock_, deadline) == std::cv_status::no_timeout;
  }
  template <typename Rep, typename Period>
  bool wait_for(MutexLock& lock, const std::chrono::duration<Rep, Period>& duration) {
    return condition_.wait_for(lock.lock_, duration) == std::cv_status::no_timeout;
  }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace lockstep::base
