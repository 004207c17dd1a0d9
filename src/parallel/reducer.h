#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "parallel/bucket_plan.h"
#include "parallel/flat_buffer.h"
#include "torch_private/autograd_node.h"

namespace lockstep::parallel {

// How buckets are made for sharding, where limits alone are not enough.
struct BucketRules {
  // Replaces the plan by limits; its items are the parameters. Empty: the plan is made by the limits.
  std::vector<BucketLayout> plan = {};
  // Buckets have memory only from their first gradient to the end of their reduction. Gradients are
  // undefined after it: the hook keeps the result elsewhere.
  bool transient = false;
  // All buckets start at the end of backward. Needed where other collectives run in backward: ranks
  // that use different parameters would start them in different orders.
  bool late = false;
  // Trained parameters are not broadcast at construction: the caller makes them equal.
  bool parameters_agree = false;
};

struct ReducerOptions {
  BucketLimits limits;
  BucketRules rules = {};
  bool find_unused_parameters = false;
  bool static_graph = false;
  GradientHook hook = {};  // empty: mean over the ranks
};

// Transient buckets that are reduced at a time: one is in flight while the next fills.
inline constexpr size_t kTransientInFlight = 2;

// Replaces the gradients of a backward by their mean over the ranks, inside flat buckets, while
// backward runs.
//
// A hook on each parameter's gradient accumulator counts down its bucket. A full bucket starts its
// collective at once, in plan order; a callback at the end of backward waits for all. Hooks allocate
// and format nothing.
//
// Autograd may call the hooks from one thread for each device, so one mutex protects all state.
// Exceptions leave backward() as they were thrown. A backward inside another one (a Function that
// calls backward) is reduced separately, and therefore needs find_unused_parameters.
//
// In a world of one rank nothing is reduced: gradients stay where autograd puts them, and buckets
// only count.
class Reducer {
 public:
  // Adds a hook to every accumulator and makes every gradient a view of its bucket; an existing
  // gradient keeps its value.
  // REQUIRES: distinct leaf parameters that require a gradient, in registration
  // order, the same on every rank.
  Reducer(std::vector<NamedParameter> parameters, Communicator communicator, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Off: hooks only collect gradients in their buckets. Not during a backward.
  void set_sync(bool enabled) { sync_ = enabled; }

  // Waits for the collectives of a backward that an exception ended.
  void drain();

  void zero_grad();

  // --- between backwards, when no hook runs: without the lock ---

  // Total time that the ends of backwards waited for collectives: communication that computation did
  // not hide. Zero on CUDA, where the stream waits.
  std::chrono::nanoseconds waited() const LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  std::vector<GradientSync::BucketStats> bucket_stats() const
      LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // The memory of all gradients: bucket by bucket, or parameter by parameter in a world of one rank.
  std::vector<at::Tensor> gradients() const LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis);
  // Bytes of all buckets; of transient ones what is lent to them or kept for them.
  int64_t bucket_bytes() const LOCKSTEP_THREAD_ATTRIBUTE(no_thread_safety_analysis);

 private:
  class Hook;

  struct Bucket {
    FlatBuffer buffer;
    int64_t payload = 0;  // elements without the padding
    std::vector<std::string> names;
    std::vector<size_t> slots;  // indices of parameters
    // This backward:
    size_t missing = 0;  // gradients that have not arrived
    PendingReduction reduction;
  };

  struct Slot {
    at::Tensor parameter;
    at::Tensor view;
    size_t bucket = 0;
    // Value of clock_ at the last gradient.
    int64_t last_used = -1;
    // The backward in which the hook last ran.
    int last_backward = -1;
    // After the first step of a static graph:
    bool expected = true;        // this rank uses it
    bool used_somewhere = true;  // some rank uses it
    std::string name;
    torch_private::NodePtr accumulator;
    uintptr_t hook_key = 0;
  };

  void add_buckets(const std::vector<NamedParameter>& parameters) LOCKSTEP_REQUIRES(mutex_);
  void adopt_gradient(Slot& slot) LOCKSTEP_REQUIRES(mutex_);
  void add_hook(size_t index) LOCKSTEP_REQUIRES(mutex_);

  void on_gradient(size_t index, const at::Tensor& incoming);
  void move_into_bucket(Slot& slot) LOCKSTEP_REQUIRES(mutex_);
  void open(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);
  void close(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);
  void abandon_backward() LOCKSTEP_REQUIRES(mutex_);
  void begin_backward(int backward) LOCKSTEP_REQUIRES(mutex_);
  void mark_ready(Slot& slot) LOCKSTEP_REQUIRES(mutex_);
  void launch_full_buckets() LOCKSTEP_REQUIRES(mutex_);
  void launch(size_t index) LOCKSTEP_REQUIRES(mutex_);
  void poke() LOCKSTEP_REQUIRES(mutex_);

  void finish_backward();
  void account_for_missing() LOCKSTEP_REQUIRES(mutex_);
  // Writes to the bucket what a parameter contributes whose hook does not run: the sum of backwards
  // without sync, or zero.
  void clear_unless_contributed(Slot& slot) LOCKSTEP_REQUIRES(mutex_);
  Work start_usage_exchange() LOCKSTEP_REQUIRES(mutex_);
  void learn_usage(Work usage) LOCKSTEP_REQUIRES(mutex_);
  void set_unused_gradients() LOCKSTEP_REQUIRES(mutex_);
  void wait_for_buckets() LOCKSTEP_REQUIRES(mutex_);
  void wait_for(Bucket& bucket) LOCKSTEP_REQUIRES(mutex_);

  // Whether a gradient arrived since the last reduction or zero_grad().
  bool has_contribution(const Slot& slot) const LOCKSTEP_REQUIRES(mutex_);
  bool tolerates_unused() const { return options_.find_unused_parameters || options_.static_graph; }
  bool exchanges_usage() const LOCKSTEP_REQUIRES(mutex_);

  Communicator communicator_;
  const ReducerOptions options_;
  const bool alone_;
  bool sync_ = true;

  base::Mutex mutex_;
  std::vector<Slot> slots_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<Bucket> buckets_ LOCKSTEP_GUARDED_BY(mutex_);
  LentMemory memory_ LOCKSTEP_GUARDED_BY(mutex_);  // of transient buckets

  // Ticks at every reduction and zero_grad(), so that "since" is a comparison.
  int64_t clock_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int64_t last_cleared_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  int64_t last_reduced_ LOCKSTEP_GUARDED_BY(mutex_) = 0;

  bool in_backward_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  int backward_ LOCKSTEP_GUARDED_BY(mutex_) = -1;       // autograd's id of the running backward
  size_t ready_ LOCKSTEP_GUARDED_BY(mutex_) = 0;        // slots whose hook ran in it
  size_t next_launch_ LOCKSTEP_GUARDED_BY(mutex_) = 0;  // buckets before it are started
  size_t next_poke_ LOCKSTEP_GUARDED_BY(mutex_) = 0;    // buckets before it are done
  size_t next_wait_ LOCKSTEP_GUARDED_BY(mutex_) = 0;    // buckets before it are reduced and finished
  bool learned_ LOCKSTEP_GUARDED_BY(mutex_) = false;    // static_graph: the first step is over
  std::chrono::nanoseconds waited_ LOCKSTEP_GUARDED_BY(mutex_){0};
  at::Tensor usage_ LOCKSTEP_GUARDED_BY(mutex_);  // 1 for each parameter that got a gradient
};

}  // namespace lockstep::parallel
