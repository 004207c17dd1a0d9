#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "checkpoint/host_copy.h"
#include "checkpoint/store.h"

namespace lockstep::checkpoint {

// Saves in the background. The caller waits for the copy to host memory only; one save
// is outstanding at most. Used by one thread.
class AsyncWriter {
 public:
  // `store` must outlive it and is used by nobody else meanwhile, unless wait() came
  // back.
  explicit AsyncWriter(Store& store);
  // Waits for the outstanding save; an error that nobody asked for is logged.
  ~AsyncWriter();
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  // Waits for the save before, copies, and returns while a thread writes. Throws the
  // error of the save before, if nobody has taken it yet, and then has not begun this
  // one. Throws its own where it is known at once: too little space, a tensor that the
  // format cannot hold.
  void save(const Snapshot& snapshot);

  // What became of the last save: the entry when it is on disk, nullopt while it is
  // being written or when there was none. Throws its error, once. poll() does not block.
  std::optional<Entry> poll();
  std::optional<Entry> wait();

  bool busy() const;

 private:
  void run();
  std::optional<Entry> take_result(std::unique_lock<std::mutex>& lock);

  Store& store_;
  HostCopy copy_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Under mutex_. While busy_, the thread alone uses store_ and pending_.
  bool busy_ = false;
  bool stop_ = false;
  std::optional<Snapshot> pending_;
  std::optional<Entry> done_;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
