#pragma once

#include <lockstep/communicator.h>
#include <lockstep/sharded.h>

#include <cstdint>
#include <vector>

#include "grad/lent_memory.h"
#include "shard/sharded_bucket.h"

namespace lockstep::shard {

// Decides when the parameters of each unit are whole: gathered before its forward and
// its backward, released after each, and the one that comes next gathered ahead, by the
// order of the first forward.
//
// Unit 0 is what belongs to no Sharded module: whole from prepare_forward() until
// backward has its gradients. One thread at a time; all ranks see the same events.
class UnitSchedule final : public UnitWatcher {
 public:
  // buckets[i] belongs to unit unit_of[i], below num_units; they outlive it.
  UnitSchedule(std::vector<ShardedBucket>& buckets, std::vector<size_t> unit_of, size_t num_units,
               Communicator communicator, bool prefetch);

  void begin_step();
  void before_forward(size_t unit) override;
  void after_forward(size_t unit) override;
  void before_backward(size_t unit) override;
  // The reduction of a bucket's gradients has started: nobody needs its parameters.
  void bucket_reduced(size_t bucket);
  // Whatever a step has left whole.
  void release_all();
  void gather_all();

  int64_t bytes() const { return memory_.bytes(); }

 private:
  struct UnitState {
    std::vector<size_t> buckets;  // those that are not resident
    std::vector<Work> gathers;    // running ones
    bool whole = false;           // or on its way
    size_t reduced = 0;           // buckets of this backward
  };

  void start(size_t unit);
  void finish(size_t unit);
  void release(size_t unit);
  // The unit that follows in the recorded order, or comes before.
  void start_neighbour(size_t unit, int direction);

  std::vector<ShardedBucket>& buckets_;
  const std::vector<size_t> unit_of_;
  const bool prefetch_;
  grad::LentMemory memory_;
  std::vector<UnitState> units_;

  // Each unit's place in the forward, by first use; -1: not seen yet.
  std::vector<int64_t> position_;
  std::vector<size_t> order_;
};

}  // namespace lockstep::shard
