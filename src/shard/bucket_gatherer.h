#pragma once

#include <lockstep/communicator.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "grad/lent_memory.h"
#include "shard/sharded_bucket.h"
#include "shard/unit_schedule.h"

namespace lockstep::shard {

// Gathers buckets of a model, which outlive it, into memory of its own, and those that are
// resident after an update.
class BucketGatherer final : public Gatherer {
 public:
  // `resident_of`: the resident buckets in which each unit has parameters.
  BucketGatherer(std::vector<ShardedBucket>& buckets, std::vector<std::vector<size_t>> resident_of,
                 Communicator communicator)
      : buckets_(buckets),
        resident_of_(std::move(resident_of)),
        updates_(buckets.size()),
        memory_(std::move(communicator)) {}

  Gather start(size_t bucket) override { return buckets_[bucket].start_gather(memory_); }
  void release(size_t bucket) override { buckets_[bucket].release(memory_); }
  // After an update of this rank's part.
  void publish(size_t bucket) { updates_[bucket] = buckets_[bucket].publish(); }
  void settle(size_t unit) override {
    for (const size_t bucket : resident_of_[unit]) updates_[bucket].wait();
  }
  void settle_all() {
    for (Work& update : updates_) update.wait();
  }
  // What was published is waited for by others later.
  void set_aside() {
    for (Work& update : updates_) update.set_aside();
  }
  void forget_free() override { memory_.forget_free(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<ShardedBucket>& buckets_;
  const std::vector<std::vector<size_t>> resident_of_;
  std::vector<Work> updates_;  // running ones, by bucket
  grad::LentMemory memory_;
};

}  // namespace lockstep::shard
