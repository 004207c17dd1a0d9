#include "shard/buffer_plan.h"

#include <map>

#include "grad/lent_memory.h"
#include "grad/reducer.h"
#include "shard/unit_schedule.h"

namespace lockstep::shard {

namespace {

// LentMemory without memory.
class LentBytes {
 public:
  void lend(size_t borrower, int64_t needed) {
    if (needed == 0 || lent_.count(borrower) > 0) return;
    int64_t block = needed;
    if (const auto found = grad::pick_block(free_, needed)) {
      block = free_[*found];
      free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(*found));
    } else {
      total_ += needed;
    }
    lent_.emplace(borrower, block);
  }

  void take_back(size_t borrower) {
    const auto found = lent_.find(borrower);
    if (found == lent_.end()) return;
    free_.push_back(found->second);
    lent_.erase(found);
  }

  int64_t total() const { return total_; }

 private:
  std::vector<int64_t> free_;
  std::map<size_t, int64_t> lent_;
  int64_t total_ = 0;
};

int64_t bytes_of(const grad::BucketLayout& layout) {
  return layout.numel * static_cast<int64_t>(c10::elementSize(layout.dtype));
}

class CountingGatherer final : public Gatherer {
 public:
  explicit CountingGatherer(const ModelLayout& layout) : layout_(layout) {}

  Gather start(size_t bucket) override {
    bytes_.lend(bucket, bytes_of(layout_.buckets[bucket].layout));
    return {};
  }
  void release(size_t bucket) override { bytes_.take_back(bucket); }
  void settle(size_t /*unit*/) override {}
  void forget_free() override {}
  int64_t total() const { return bytes_.total(); }

 private:
  const ModelLayout& layout_;
  LentBytes bytes_;
};

// The events of training steps.
class Rehearsal {
 public:
  Rehearsal(const ModelLayout& layout, const std::vector<LayoutParameter>& parameters,
            const std::vector<size_t>& parents, const ShardedOptions& options)
      : layout_(layout),
        parameters_(parameters),
        parents_(parents),
        late_(options.stage == 3 && options.find_unused_parameters),
        gatherer_(layout),
        schedule_(layout.by_unit(parents.size() + 1), gatherer_,
                  options.prefetch ? options.prefetch_limit : 0) {
    bucket_of_.resize(parameters.size());
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
      for (const grad::BucketSlot& slot : layout.buckets[i].layout.slots) bucket_of_[slot.item] = i;
    }
  }

  void step() {
    schedule_.begin_step();
    for (size_t unit = 1; unit <= parents_.size(); ++unit) {
      if (parents_[unit - 1] == 0) forward(unit);
    }
    backward();
    schedule_.release_all();
  }

  int64_t total() const { return gatherer_.total() + gradients_.total(); }

 private:
  void forward(size_t unit) {
    schedule_.before_forward(unit);
    for (size_t inner = unit + 1; inner <= parents_.size(); ++inner) {
      if (parents_[inner - 1] == unit) forward(inner);
    }
    schedule_.after_forward(unit);
  }

  void backward() {
    in_backward_.assign(parents_.size() + 1, false);
    missing_.clear();
    for (const LayoutBucket& bucket : layout_.buckets) missing_.push_back(bucket.layout.slots.size());
    next_launch_ = 0;
    next_wait_ = 0;
    for (size_t i = parameters_.size(); i-- > 0;) {
      enter(parameters_[i].unit);
      const size_t bucket = bucket_of_[i];
      gradients_.lend(bucket, bytes_of(layout_.buckets[bucket].layout));
      if (--missing_[bucket] == 0 && !late_) launch_full();
    }
    while (next_launch_ < layout_.buckets.size()) launch();
    while (next_wait_ < next_launch_) gradients_.take_back(next_wait_++);
  }

  // Gradients pass through the end of a unit before those inside.
  void enter(size_t unit) {
    if (unit == 0 || in_backward_[unit]) return;
    enter(parents_[unit - 1]);
    in_backward_[unit] = true;
    schedule_.before_backward(unit);
  }

  void launch_full() {
    while (next_launch_ < layout_.buckets.size() && missing_[next_launch_] == 0) launch();
    while (next_launch_ - next_wait_ > grad::kTransientInFlight) gradients_.take_back(next_wait_++);
  }

  void launch() {
    const LayoutBucket& bucket = layout_.buckets[next_launch_++];
    if (!bucket.resident) schedule_.bucket_reduced(bucket.unit);
  }

  const ModelLayout& layout_;
  const std::vector<LayoutParameter>& parameters_;
  const std::vector<size_t>& parents_;
  const bool late_;
  CountingGatherer gatherer_;
  UnitSchedule schedule_;
  LentBytes gradients_;
  std::vector<size_t> bucket_of_;  // of each parameter

  // This backward:
  std::vector<bool> in_backward_;
  std::vector<size_t> missing_;
  size_t next_launch_ = 0;
  size_t next_wait_ = 0;
};

}  // namespace

int64_t plan_buffers(const ModelLayout& layout, const std::vector<LayoutParameter>& parameters,
                     const std::vector<size_t>& parents, const ShardedOptions& options) {
  if (options.stage < 2) return 0;
  Rehearsal rehearsal(layout, parameters, parents, options);
  // The second one knows the order of units and gathers ahead.
  rehearsal.step();
  rehearsal.step();
  return rehearsal.total();
}

}  // namespace lockstep::shard
