#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <thread>

#include "base/mutex.h"
#include "checkpoint/snapshot.h"
#include "checkpoint/store.h"

namespace lockstep::checkpoint {

// Saves in the background: the caller waits only for the copy to host memory, and at most one save is
// outstanding. Or in the foreground, if host memory is short. Not thread-safe: one caller.
class AsyncWriter {
 public:
  // Called in the writer's thread with a snapshot in host memory.
  using Write = std::function<Entry(const Snapshot&)>;

  // Calls store.save. The store must outlive the writer. While busy() only the writer may use it.
  explicit AsyncWriter(Store& store);
  explicit AsyncWriter(Write write);
  // Waits for the outstanding save. Logs its error if poll() or wait() did not report it.
  ~AsyncWriter();
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Waits for the previous save, copies the tensors, and returns while the thread writes. Throws the
  // error of the previous save if it was not reported yet; this snapshot is then not saved. The same
  // as prepare() and start(), between which several ranks can agree that all have their copy.
  void save(const Snapshot& snapshot);
  void prepare(const Snapshot& snapshot);
  void start();
  // Waits for the previous save and writes this one in the caller's thread, without a copy in host
  // memory. Throws as save() does, and the error of this save.
  Entry save_now(const Snapshot& snapshot);

  // The result of the last save: its entry when it is on disk; nullopt while it is being written, or
  // if the result was reported before. Throws its error. Each result is reported once. poll() does
  // not block.
  std::optional<Entry> poll();
  std::optional<Entry> wait();

  bool busy() const;

 private:
  void run();
  std::optional<Entry> take_result() LOCKSTEP_REQUIRES(mutex_);

  const Write write_;
  HostCopy copy_;
  Snapshot pending_;  // the thread uses it while busy_, the caller otherwise
  mutable base::Mutex mutex_;
  base::Condition changed_;
  bool busy_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  bool stop_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  std::optional<Entry> done_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
