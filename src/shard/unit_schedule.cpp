#include "shard/unit_schedule.h"

#include <ATen/ATen.h>

namespace lockstep::shard {

UnitSchedule::UnitSchedule(std::vector<ShardedBucket>& buckets, std::vector<size_t> unit_of, size_t num_units,
                           Communicator communicator, int64_t prefetch_limit)
    : buckets_(buckets),
      unit_of_(std::move(unit_of)),
      prefetch_limit_(prefetch_limit),
      memory_(std::move(communicator)) {
  units_.resize(num_units);
  position_.assign(num_units, -1);
  for (size_t i = 0; i < buckets_.size(); ++i) {
    if (buckets_[i].resident()) continue;
    units_[unit_of_[i]].buckets.push_back(i);
    units_[unit_of_[i]].elements += buckets_[i].layout().numel;
  }
}

void UnitSchedule::start(size_t unit) {
  UnitState& state = units_[unit];
  if (state.whole) return;
  state.whole = true;
  for (const size_t bucket : state.buckets) state.gathers.push_back(buckets_[bucket].start_gather(memory_));
}

void UnitSchedule::finish(size_t unit) {
  start(unit);
  for (Gather& gather : units_[unit].gathers) gather.wait();
  units_[unit].gathers.clear();
}

void UnitSchedule::release(size_t unit) {
  UnitState& state = units_[unit];
  if (!state.whole || is_held()) return;
  finish(unit);  // nobody may write into memory that is given away
  for (const size_t bucket : state.buckets) buckets_[bucket].release(memory_);
  state.whole = false;
  state.reduced = 0;
}

void UnitSchedule::start_neighbour(size_t unit, int direction) {
  if (position_[unit] < 0) return;
  const int64_t next = position_[unit] + direction;
  if (next < 0 || next >= static_cast<int64_t>(order_.size())) return;
  const size_t neighbour = order_[static_cast<size_t>(next)];
  if (units_[neighbour].elements <= prefetch_limit_) start(neighbour);
}

void UnitSchedule::begin_step() {
  for (UnitState& state : units_) state.reduced = 0;  // an exception may have ended the last backward
  finish(0);
}

void UnitSchedule::before_forward(size_t unit) {
  if (position_[unit] < 0) {
    position_[unit] = static_cast<int64_t>(order_.size());
    order_.push_back(unit);
  }
  finish(unit);
  start_neighbour(unit, +1);
}

void UnitSchedule::after_forward(size_t unit) {
  // Backward begins with the last one.
  const bool is_last = order_.back() == unit;
  if (!at::GradMode::is_enabled() || !is_last) release(unit);
}

void UnitSchedule::before_backward(size_t unit) {
  finish(unit);
  start_neighbour(unit, -1);
}

void UnitSchedule::bucket_reduced(size_t bucket) {
  if (buckets_[bucket].resident()) return;
  const size_t unit = unit_of_[bucket];
  if (unit == 0) return;
  if (++units_[unit].reduced == units_[unit].buckets.size()) release(unit);
}

void UnitSchedule::release_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) release(unit);
}

void UnitSchedule::hold() {
  if (holds_++ == 0) {
    whole_before_hold_.clear();
    for (const UnitState& state : units_) whole_before_hold_.push_back(state.whole);
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) start(unit);
  for (size_t unit = 0; unit < units_.size(); ++unit) finish(unit);
}

void UnitSchedule::unhold() {
  if (--holds_ > 0) return;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!whole_before_hold_[unit]) release(unit);
  }
  memory_.forget_free();
}

}  // namespace lockstep::shard
