#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/host_copy.h"
#include "checkpoint/store.h"

namespace lockstep::checkpoint {

// Saves in the background. The caller waits for the copy to host memory only; one save
// is outstanding at most. Or in the foreground, where host memory is short. Used by one thread.
class AsyncWriter {
 public:
  // Called in the writer's thread with a snapshot in host memory.
  using Write = std::function<Entry(const Snapshot&)>;

  // Calls store.save. The store must outlive it, and is the thread's while busy().
  explicit AsyncWriter(Store& store);
  explicit AsyncWriter(Write write);
  // Waits for the outstanding save; an error that nobody has taken is logged.
  ~AsyncWriter();
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Waits for the save before, copies the tensors, and returns while the thread writes.
  // Throws the error of the save before, if nobody has taken it; this snapshot is then
  // not saved. It is prepare() and start(), between which writers of several ranks can agree
  // that all have their copy.
  void save(const Snapshot& snapshot);
  void prepare(const Snapshot& snapshot);
  void start();
  // Waits for the save before and writes this one in the caller's thread, without a copy of it in
  // host memory. Throws as save() does, and the error of this one.
  Entry save_now(const Snapshot& snapshot);

  // What became of the last save: its entry when it is on disk; nullopt while it is
  // being written, and when there is nothing that was not taken already. Throws its
  // error. Each result is given once. poll() does not block.
  std::optional<Entry> poll();
  std::optional<Entry> wait();

  bool busy() const;

 private:
  void run();
  void write(const Snapshot& snapshot) noexcept;
  std::optional<Entry> take_result();

  const Write write_;
  HostCopy copy_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_. While busy_, pending_ is the thread's.
  bool busy_ = false;
  bool stop_ = false;
  Snapshot pending_;
  std::optional<Entry> done_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
