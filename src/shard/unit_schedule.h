#pragma once

#include <lockstep/communicator.h>
#include <lockstep/sharded.h>

#include <cstdint>
#include <vector>

#include "shard/gather.h"
#include "shard/model_layout.h"

namespace lockstep::shard {

// What makes buckets whole, and takes the memory for it away again. Buckets by their number.
class Gatherer {
 public:
  virtual ~Gatherer() = default;
  virtual Gather start(size_t bucket) = 0;
  virtual void release(size_t bucket) = 0;
  // What is still on its way into buckets that are whole at all times, and in which this
  // unit has parameters, has arrived.
  virtual void settle(size_t unit) = 0;
  // Memory that no bucket has now is given up.
  virtual void forget_free() = 0;
};

// Decides when the parameters of each unit are whole: gathered before its forward and
// its backward, released after each, and the one that comes next gathered ahead, by the
// order of the first forward.
//
// Unit 0 is what belongs to no Sharded module, or to several: whole from begin_step() until
// release_all(), because nothing tells when a forward or a backward needs it. One thread at a time; all ranks
// see the same events.
class UnitSchedule final : public UnitWatcher {
 public:
  // The gatherer outlives it. A unit of more elements than `prefetch_limit` is not gathered
  // ahead.
  UnitSchedule(const std::vector<UnitBuckets>& units, Gatherer& gatherer, int64_t prefetch_limit);

  void begin_step();
  void before_forward(size_t unit) override;
  void after_forward(size_t unit) override;
  void before_backward(size_t unit) override;
  // The reduction of the gradients of one of the unit's buckets, one that is not whole at
  // all times, has started: nobody needs its parameters.
  void bucket_reduced(size_t unit);
  // Whatever a step has left whole.
  void release_all();
  // All units are whole, whatever happens, until as many unhold() have been said.
  void hold();
  // The last one releases what was not whole before the first hold().
  void unhold();
  bool is_held() const { return holds_ > 0; }

 private:
  struct UnitState {
    UnitBuckets own;
    std::vector<Gather> gathers;  // running ones
    bool whole = false;           // or on its way
    size_t reduced = 0;           // buckets of this backward
  };

  void start(size_t unit);
  void finish(size_t unit);
  void release(size_t unit);
  // The unit that follows in the recorded order, or comes before.
  void start_neighbour(size_t unit, int direction);

  Gatherer& gatherer_;
  const int64_t prefetch_limit_;
  int holds_ = 0;
  std::vector<bool> whole_before_hold_;
  std::vector<UnitState> units_;

  // Each unit's place in the forward, by first use; -1: not seen yet.
  std::vector<int64_t> position_;
  std::vector<size_t> order_;
  // The unit that is still whole after its forward because backward may begin with it; 0: none.
  size_t kept_ = 0;
};

}  // namespace lockstep::shard
