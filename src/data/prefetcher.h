#pragma once

#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "data/batch_sequence.h"
#include "data/device_handover.h"

namespace lockstep::data {

// A batch and what to save once it is used.
struct FetchedBatch {
  Batch batch;
  SamplerState state_after;
  DeviceHandover handover = {};  // from the thread that has read it
};

using Fetch = std::function<Batch(const BatchRequest&)>;

// Threads that read the batches of a sequence ahead of one consumer, who gets them in
// the sequence's order.
class Prefetcher {
 public:
  // Starts the threads. `fetch` is called by several at once. At most `capacity` batches
  // are read and not yet taken.
  Prefetcher(BatchSequence sequence, Fetch fetch, int num_workers, int capacity);
  // Waits for the calls of fetch that are running.
  ~Prefetcher();

  // Blocks until the next batch is there. False after the last one. Throws what fetch
  // threw for this batch.
  bool next(FetchedBatch& out);

 private:
  struct Slot {
    bool ready = false;
    FetchedBatch fetched;
    std::exception_ptr error;
  };

  void run();
  // False: nothing is left to read.
  bool take(BatchRequest& request, int64_t& ticket);
  Slot fetch(const BatchRequest& request) noexcept;
  void stop();
  Slot& slot_of(int64_t ticket) { return slots_[static_cast<size_t>(ticket) % slots_.size()]; }

  const Fetch fetch_;
  std::mutex mutex_;
  std::condition_variable ready_;  // for the consumer: its next batch is there, or the end
  std::condition_variable free_;   // for the workers: a slot is free, or the end

  // Under mutex_. Batches are numbered by tickets: [0, consumed_) have been taken by the
  // consumer, [consumed_, taken_) are read or being read; ticket t lies in slot_of(t).
  BatchSequence sequence_;
  std::vector<Slot> slots_;
  int64_t taken_ = 0;
  int64_t consumed_ = 0;
  bool ended_ = false;  // no more tickets: the sequence is over, it failed, or stop()

  std::vector<std::thread> workers_;
};

}  // namespace lockstep::data
