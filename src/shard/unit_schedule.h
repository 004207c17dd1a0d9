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
// Unit 0 is what belongs to no Sharded module, or to several: whole from begin_step() until
// release_all(), because nothing tells when a forward or a backward needs it. One thread at a time; all ranks
// see the same events.
class UnitSchedule final : public UnitWatcher {
 public:
  // buckets[i] belongs to unit unit_of[i], below num_units; they outlive it. A unit of more
  // elements than `prefetch_limit` is not gathered ahead.
  UnitSchedule(std::vector<ShardedBucket>& buckets, std::vector<size_t> unit_of, size_t num_units,
               Communicator communicator, int64_t prefetch_limit);

  void begin_step();
  void before_forward(size_t unit) override;
  void after_forward(size_t unit) override;
  void before_backward(size_t unit) override;
  // The reduction of a bucket's gradients has started: nobody needs its parameters.
  void bucket_reduced(size_t bucket);
  // Whatever a step has left whole.
  void release_all();
  // All units are whole, whatever happens, until as many unhold() have been said.
  void hold();
  // The last one releases what was not whole before the first hold().
  void unhold();
  bool is_held() const { return holds_ > 0; }

  int64_t bytes() const { return memory_.bytes(); }

 private:
  struct UnitState {
    std::vector<size_t> buckets;  // those that are not resident
    std::vector<Gather> gathers;  // running ones
    bool whole = false;           // or on its way
    size_t reduced = 0;           // buckets of this backward
    int64_t elements = 0;
  };

  void start(size_t unit);
  void finish(size_t unit);
  void release(size_t unit);
  // The unit that follows in the recorded order, or comes before.
  void start_neighbour(size_t unit, int direction);

  std::vector<ShardedBucket>& buckets_;
  const std::vector<size_t> unit_of_;
  const int64_t prefetch_limit_;
  int holds_ = 0;
  std::vector<bool> whole_before_hold_;
  grad::LentMemory memory_;
  std::vector<UnitState> units_;

  // Each unit's place in the forward, by first use; -1: not seen yet.
  std::vector<int64_t> position_;
  std::vector<size_t> order_;
};

}  // namespace lockstep::shard
