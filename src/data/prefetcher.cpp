#include "data/prefetcher.h"

#include <pthread.h>

#include <utility>

namespace lockstep::data {

Prefetcher::Prefetcher(BatchSequence sequence, Fetch fetch, int num_workers, int capacity)
    : fetch_(std::move(fetch)), sequence_(std::move(sequence)), slots_(static_cast<size_t>(capacity)) {
  try {
    for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { run(); });
  } catch (...) {  // no thread to be had
    stop();
    throw;
  }
}

Prefetcher::~Prefetcher() { stop(); }

bool Prefetcher::next(FetchedBatch& out) {
  Slot slot;
  {
    std::unique_lock lock(mutex_);
    ready_.wait(lock, [this] { return slot_of(consumed_).ready || (ended_ && consumed_ == taken_); });
    if (!slot_of(consumed_).ready) return false;
    slot = std::exchange(slot_of(consumed_), {});
    ++consumed_;
  }
  free_.notify_one();
  if (slot.error) std::rethrow_exception(slot.error);
  out = std::move(slot.fetched);
  out.handover.take(out.batch);
  return true;
}

void Prefetcher::run() {
  pthread_setname_np(pthread_self(), "lockstep-data");
  BatchRequest request;
  int64_t ticket = 0;
  while (take(request, ticket)) {
    Slot slot = fetch(request);
    bool consumer_waits = false;
    {
      const std::lock_guard lock(mutex_);
      slot_of(ticket) = std::move(slot);
      consumer_waits = ticket == consumed_;
    }
    if (consumer_waits) ready_.notify_one();
  }
}

bool Prefetcher::take(BatchRequest& request, int64_t& ticket) {
  std::unique_lock lock(mutex_);
  free_.wait(lock, [this] { return ended_ || taken_ - consumed_ < static_cast<int64_t>(slots_.size()); });
  if (ended_) return false;
  try {
    if (sequence_.next(request)) {
      ticket = taken_++;
      return true;
    }
  } catch (...) {  // the order of the next epoch does not fit into memory
    slot_of(taken_++) = {.ready = true, .fetched = {}, .error = std::current_exception()};
  }
  ended_ = true;
  lock.unlock();
  ready_.notify_one();
  free_.notify_all();
  return false;
}

Prefetcher::Slot Prefetcher::fetch(const BatchRequest& request) noexcept {
  try {
    FetchedBatch fetched{fetch_(request), request.state_after};
    fetched.handover = DeviceHandover(fetched.batch);
    return {.ready = true, .fetched = std::move(fetched), .error = nullptr};
  } catch (...) {
    return {.ready = true, .fetched = {}, .error = std::current_exception()};
  }
}

void Prefetcher::stop() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  free_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

}  // namespace lockstep::data
