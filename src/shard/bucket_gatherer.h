#pragma once

#include <lockstep/communicator.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "grad/lent_memory.h"
#include "shard/sharded_bucket.h"
#include "shard/unit_schedule.h"

namespace lockstep::shard {

// Gathers buckets of a model, which outlive it, into memory of its own.
class BucketGatherer final : public Gatherer {
 public:
  BucketGatherer(std::vector<ShardedBucket>& buckets, Communicator communicator)
      : buckets_(buckets), memory_(std::move(communicator)) {}

  Gather start(size_t bucket) override { return buckets_[bucket].start_gather(memory_); }
  void release(size_t bucket) override { buckets_[bucket].release(memory_); }
  void forget_free() override { memory_.forget_free(); }
  int64_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<ShardedBucket>& buckets_;
  grad::LentMemory memory_;
};

}  // namespace lockstep::shard
