#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/communicator.h>
#include <lockstep/data_parallel.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "grad/bucket_plan.h"
#include "grad/flat_buffer.h"
#include "grad/lent_memory.h"
#include "grad/named_parameter.h"
#include "torch_private/autograd_node.h"

namespace lockstep::grad {

// How buckets are made where limits do not say it all: for sharding.
struct BucketRules {
  // In place of a plan by the limits; items are the parameters. Empty: by the limits.
  std::vector<BucketLayout> plan = {};
  // Buckets have memory from their first gradient to the end of their reduction only, and
  // gradients are undefined after it: the hook leaves the result elsewhere.
  bool transient = false;
  // No bucket starts before the end of backward: where other collectives run in it, ranks
  // that use other parameters would else start them in another order.
  bool late = false;
  // Trained parameters need not be broadcast at construction: the caller sees to it that
  // they are equal.
  bool parameters_agree = false;
};

struct ReducerOptions {
  BucketLimits limits;
  BucketRules rules = {};
  bool find_unused_parameters = false;
  bool static_graph = false;
  GradientHook hook = {};  // empty: mean over the ranks
};

// Transient buckets that are being reduced at a time: one on its way while the next fills.
inline constexpr size_t kTransientInFlight = 2;

// Turns the gradients of a backward into their mean over the ranks, inside flat
// buckets, while backward runs.
//
// A hook on each parameter's gradient accumulator counts its bucket down; a full
// bucket starts its collective at once, buckets strictly in plan order; a callback
// at the end of backward waits for all. A hook allocates nothing and formats
// nothing.
//
// Autograd may call the hooks from a thread per device; all state is behind one
// mutex. Exceptions leave backward() as they were thrown. A backward that runs inside
// another one (a Function that calls backward) reduces on its own, so that it needs
// find_unused_parameters.
//
// A rank that is alone has nobody to share with: its gradients stay where autograd puts
// them, and buckets only count.
class Reducer {
 public:
  // Hooks itself into the accumulators and makes every gradient a view of its
  // bucket; a gradient that is already there is kept.
  // REQUIRES: distinct leaf parameters that require a gradient, in registration
  // order, the same on every rank.
  Reducer(std::vector<NamedParameter> parameters, Communicator communicator, ReducerOptions options);
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // Off: hooks only keep gradients in their buckets.
  void set_sync(bool enabled) { sync_ = enabled; }

  // Waits for what a backward that an exception ended has left in flight.
  void settle();

  void zero_grad();

  // Time at the ends of backwards that waited for collectives, in all: communication that
  // nothing hid. On CUDA a wait is the stream's, and does not show here.
  std::chrono::nanoseconds waited() const { return waited_; }

  struct Bucket {
    FlatBuffer buffer;
    int64_t payload = 0;  // elements that are somebody's
    std::vector<std::string> names;
    std::vector<size_t> slots;  // indices of parameters
    // This backward:
    size_t missing = 0;  // gradients still to come
    PendingReduction reduction;
  };
  const std::vector<Bucket>& buckets() const { return buckets_; }
  // The memory of all gradients: whole buckets, or those of each parameter that has one where
  // the rank is alone.
  std::vector<at::Tensor> gradients() const;
  // All memory of buckets, of transient ones that which is lent or kept for them.
  int64_t bucket_bytes() const;

 private:
  class Hook;

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
    bool used_somewhere = true;  // some rank does
    std::string name;
    torch_private::NodePtr accumulator;
    uintptr_t hook_key = 0;
  };

  void add_buckets(const std::vector<NamedParameter>& parameters);
  void adopt_gradient(Slot& slot);
  void add_hook(size_t index);

  void on_gradient(size_t index, const at::Tensor& incoming);
  void move_into_bucket(Slot& slot);
  void open(Bucket& bucket);
  void close(Bucket& bucket);
  void abandon_backward();
  void begin_backward(int backward);
  void mark_ready(Slot& slot);
  void launch_full_buckets();
  void launch(size_t index);
  void poke();

  void finish_backward();
  void account_for_missing();
  // Makes the bucket hold what a parameter contributes whose hook does not run: sums of
  // backwards without sync, or zero.
  void clear_unless_contributed(Slot& slot);
  Work start_usage_exchange();
  void learn_usage(Work usage);
  void settle_unused();
  void wait_for_buckets();
  void wait_for(Bucket& bucket);

  // Whether a gradient arrived since the last reduction or zero_grad().
  bool has_contribution(const Slot& slot) const;
  bool tolerates_unused() const;
  bool exchanges_usage() const;

  Communicator communicator_;
  const ReducerOptions options_;
  const bool alone_;
  bool sync_ = true;

  std::mutex mutex_;  // guards all below
  std::vector<Slot> slots_;
  std::vector<Bucket> buckets_;
  LentMemory memory_;  // of transient buckets

  // Ticks at every reduction and zero_grad(), so that "since" is a comparison.
  int64_t clock_ = 0;
  int64_t last_cleared_ = 0;
  int64_t last_reduced_ = 0;

  bool in_backward_ = false;
  int backward_ = -1;       // autograd's id of the running backward
  size_t ready_ = 0;        // slots whose hook ran in it
  size_t next_launch_ = 0;  // buckets before it are started
  size_t next_poke_ = 0;    // buckets before it are done
  size_t next_wait_ = 0;    // buckets before it are reduced and finished
  bool learned_ = false;    // static_graph: the first step is over
  std::chrono::nanoseconds waited_{0};
  at::Tensor usage_;  // 1 for each parameter that got a gradient
};

}  // namespace lockstep::grad
