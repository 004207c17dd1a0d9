#include "parallel/unit_schedule.h"

#include <ATen/ATen.h>
#include <lockstep/sharded.h>
#include <torch/csrc/autograd/graph_task.h>

namespace lockstep::parallel {

void Unit::watch(const at::Tensor& output) {
  if (!output.defined() || !output.requires_grad()) return;
  // Runs when the output's gradient is known, before the nodes that made the output.
  output.register_hook([link = link_](const at::Tensor&) {
    if (link->watcher != nullptr) link->watcher->before_backward(link->index);
  });
}

UnitSchedule::UnitSchedule(const std::vector<UnitBuckets>& units, Gatherer& gatherer, int64_t prefetch_limit)
    : gatherer_(gatherer), prefetch_limit_(prefetch_limit) {
  units_.resize(units.size());
  position_.assign(units.size(), -1);
  for (size_t unit = 0; unit < units.size(); ++unit) units_[unit].own = units[unit];
}

void UnitSchedule::start(size_t unit) {
  UnitState& state = units_[unit];
  if (state.gathered) return;
  state.gathered = true;
  for (const size_t bucket : state.own.buckets) state.gathers.push_back(gatherer_.start(bucket));
}

void UnitSchedule::finish(size_t unit) {
  start(unit);
  for (Gather& gather : units_[unit].gathers) gather.wait();
  units_[unit].gathers.clear();
  gatherer_.wait_for_updates(unit);
}

void UnitSchedule::release(size_t unit) {
  UnitState& state = units_[unit];
  if (!state.gathered || is_held()) return;
  finish(unit);  // a gather must not write into memory that was returned
  for (const size_t bucket : state.own.buckets) gatherer_.release(bucket);
  state.gathered = false;
  state.reduced = 0;
}

void UnitSchedule::start_neighbour(size_t unit, int direction) {
  if (position_[unit] < 0) return;
  const int64_t next = position_[unit] + direction;
  if (next < 0 || next >= static_cast<int64_t>(order_.size())) return;
  const size_t neighbour = order_[static_cast<size_t>(next)];
  if (units_[neighbour].own.elements <= prefetch_limit_) start(neighbour);
}

void UnitSchedule::begin_step() {
  for (UnitState& state : units_) state.reduced = 0;  // an exception may have ended the last backward
  finish(0);
}

void UnitSchedule::before_forward(size_t unit) {
  if (position_[unit] < 0) {
    position_[unit] = static_cast<int64_t>(order_.size());
    order_.push_back(unit);
    // The kept unit seemed to be the last one until this one ran.
    if (kept_ != 0) release(kept_);
  }
  kept_ = 0;
  finish(unit);
  // Activations that are computed again inside backward need no prefetch.
  if (torch::autograd::get_current_graph_task_id() == -1) start_neighbour(unit, +1);
}

void UnitSchedule::after_forward(size_t unit) {
  // Backward begins with the last one.
  const bool is_last = order_.back() == unit;
  if (!at::GradMode::is_enabled() || !is_last) {
    release(unit);
  } else {
    kept_ = unit;
  }
}

void UnitSchedule::before_backward(size_t unit) {
  finish(unit);
  start_neighbour(unit, -1);
}

void UnitSchedule::bucket_reduced(size_t unit) {
  if (unit == 0) return;
  if (++units_[unit].reduced == units_[unit].own.buckets.size()) release(unit);
}

void UnitSchedule::release_all() {
  for (size_t unit = 0; unit < units_.size(); ++unit) release(unit);
}

void UnitSchedule::hold() {
  if (holds_++ == 0) {
    gathered_before_hold_.clear();
    for (const UnitState& state : units_) gathered_before_hold_.push_back(state.gathered);
  }
  for (size_t unit = 0; unit < units_.size(); ++unit) start(unit);
  for (size_t unit = 0; unit < units_.size(); ++unit) finish(unit);
}

void UnitSchedule::unhold() {
  if (--holds_ > 0) return;
  for (size_t unit = 0; unit < units_.size(); ++unit) {
    if (!gathered_before_hold_[unit]) release(unit);
  }
  gatherer_.forget_free();
}

}  // namespace lockstep::parallel
