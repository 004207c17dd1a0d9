#pragma once

#include <lockstep/communicator.h>
#include <lockstep/sharded.h>

#include <cstdint>
#include <vector>

#include "parallel/model_layout.h"
#include "parallel/offload.h"

namespace lockstep::parallel {

// Gathers buckets and releases their memory. Buckets have numbers.
class Gatherer {
 public:
  virtual ~Gatherer() = default;
  virtual Gather start(size_t bucket) = 0;
  virtual void release(size_t bucket) = 0;
  // Waits for the updates of resident buckets in which this unit has parameters.
  virtual void wait_for_updates(size_t unit) = 0;
  // Frees memory that no bucket uses now.
  virtual void forget_free() = 0;
};

// Decides when the parameters of each unit are gathered: before its forward and its backward. They are
// released after each, and the next unit is prefetched, in the order of the first forward.
//
// Unit 0 has the parameters that belong to no Sharded module, or to several. It is gathered from
// begin_step() until release_all(), because no event shows when a forward or a backward needs it. One
// thread at a time; all ranks see the same events.
class UnitSchedule final : public UnitWatcher {
 public:
  // The gatherer outlives it. A unit of more elements than `prefetch_limit` is not prefetched.
  UnitSchedule(const std::vector<UnitBuckets>& units, Gatherer& gatherer, int64_t prefetch_limit);

  void begin_step();
  void before_forward(size_t unit) override;
  void after_forward(size_t unit) override;
  void before_backward(size_t unit) override;
  // The reduction of one of the unit's buckets that are not resident has started: backward does not need
  // its parameters any more.
  void bucket_reduced(size_t unit);
  // Releases all units that a step has left gathered.
  void release_all();
  // Gathers all units and keeps them until unhold() was called as often.
  void hold();
  // The last call releases the units that were not gathered before the first hold().
  void unhold();
  bool is_held() const { return holds_ > 0; }

 private:
  struct UnitState {
    UnitBuckets own;
    std::vector<Gather> gathers;  // in flight
    bool gathered = false;        // or being gathered
    size_t reduced = 0;           // buckets of this backward
  };

  void start(size_t unit);
  void finish(size_t unit);
  void release(size_t unit);
  // Prefetches the next (+1) or previous (-1) unit of the recorded order.
  void start_neighbour(size_t unit, int direction);

  Gatherer& gatherer_;
  const int64_t prefetch_limit_;
  int holds_ = 0;
  std::vector<bool> gathered_before_hold_;
  std::vector<UnitState> units_;

  // Each unit's position in the first forward; -1: not seen yet.
  std::vector<int64_t> position_;
  std::vector<size_t> order_;
  // The unit that stays gathered after its forward because backward may begin with it; 0: none.
  size_t kept_ = 0;
};

}  // namespace lockstep::parallel
