#include "parallel/reducer.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace lockstep::parallel {

using torch::autograd::variable_list;

namespace {

bool is_plain_copy(const at::Tensor& from, const at::Tensor& to) {
  return from.is_cpu() && to.is_cpu() && from.scalar_type() == to.scalar_type() && from.is_contiguous() &&
         to.is_contiguous() && !from.is_conj() && !from.is_neg() && from.numel() > 0;
}

}  // namespace

class Reducer::Hook final : public torch::autograd::FunctionPostHook {
 public:
  Hook(Reducer& reducer, size_t index) : reducer_(reducer), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list& inputs) override {
    reducer_.on_gradient(index_, inputs.front());
    return outputs;
  }

 private:
  Reducer& reducer_;
  const size_t index_;
};

Reducer::Reducer(std::vector<NamedParameter> parameters, Communicator communicator, ReducerOptions options)
    : communicator_(std::move(communicator)),
      options_(std::move(options)),
      alone_(communicator_.size() == 1 && !options_.hook && options_.rules.plan.empty()),
      memory_(communicator_) {
  const at::NoGradGuard no_grad;
  slots_.resize(parameters.size());
  add_buckets(parameters);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].parameter = parameters[i].tensor;
    slots_[i].name = std::move(parameters[i].name);
    adopt_gradient(slots_[i]);
  }
  if (exchanges_usage() && !slots_.empty()) {
    usage_ = communicator_.allocate(static_cast<int64_t>(slots_.size()),
                                    at::empty({0}, slots_.front().parameter.options().dtype(at::kInt)));
  }
  for (size_t i = 0; i < slots_.size(); ++i) add_hook(i);
}

Reducer::~Reducer() {
  for (const Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook_key);
}

void Reducer::add_buckets(const std::vector<NamedParameter>& parameters) {
  std::vector<BucketItem> items;
  std::vector<at::Tensor> tensors;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    items.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
    tensors.push_back(tensor);
  }
  for (const BucketLayout& layout :
       options_.rules.plan.empty() ? plan_buckets(items, options_.limits) : options_.rules.plan) {
    Bucket& bucket = buckets_.emplace_back();
    bucket.buffer = options_.rules.transient || alone_ ? make_hollow_buffer(layout, tensors)
                                                       : make_flat_buffer(layout, tensors, communicator_);
    bucket.payload = layout.payload;
    for (size_t i = 0; i < layout.slots.size(); ++i) {
      const size_t index = layout.slots[i].item;
      slots_[index].bucket = buckets_.size() - 1;
      slots_[index].view = bucket.buffer.views[i];
      bucket.slots.push_back(index);
      bucket.names.push_back(parameters[index].name);
    }
  }
}

void Reducer::adopt_gradient(Slot& slot) {
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (options_.rules.transient) {
    gradient.reset();
    return;
  }
  if (gradient.defined()) {
    slot.last_used = clock_;
    if (!alone_) slot.view.copy_(gradient);
  }
  if (!alone_) gradient = slot.view;
}

void Reducer::add_hook(size_t index) {
  Slot& slot = slots_[index];
  // Autograd holds the accumulator weakly; ours keeps it, and the hook, alive.
  slot.accumulator = torch::autograd::impl::grad_accumulator(slot.parameter);
  slot.hook_key = slot.accumulator->add_post_hook(std::make_unique<Hook>(*this, index));
}

void Reducer::drain() {
  const base::MutexLock lock(mutex_);
  abandon_backward();
}

// Undefined instead of filled: the next gradient is then copied into its bucket, which moves less
// memory than clearing and adding.
void Reducer::zero_grad() {
  const base::MutexLock lock(mutex_);
  abandon_backward();
  for (Slot& slot : slots_) slot.parameter.mutable_grad().reset();
  for (Bucket& bucket : buckets_) close(bucket);
  last_cleared_ = ++clock_;
}

void Reducer::open(Bucket& bucket) {
  const at::Tensor& flat = bucket.buffer.flat;
  if (!options_.rules.transient || LentMemory::has_memory(flat)) return;
  memory_.lend(flat);
  if (bucket.payload < flat.numel()) flat.narrow(0, bucket.payload, flat.numel() - bucket.payload).zero_();
}

void Reducer::close(Bucket& bucket) {
  if (!options_.rules.transient) return;
  for (const size_t index : bucket.slots) slots_[index].parameter.mutable_grad().reset();
  memory_.take_back(bucket.buffer.flat);
}

bool Reducer::has_contribution(const Slot& slot) const {
  return slot.last_used >= std::max(last_reduced_, last_cleared_) && slot.parameter.grad().defined();
}

// Transient gradients are gone before the ranks could exchange which parameters they used: an
// unused parameter has a gradient of zero there.
bool Reducer::exchanges_usage() const { return tolerates_unused() && !learned_ && !options_.rules.transient; }

std::vector<GradientSync::BucketStats> Reducer::bucket_stats() const {
  std::vector<GradientSync::BucketStats> stats;
  for (const Bucket& bucket : buckets_) {
    stats.push_back({static_cast<int64_t>(bucket.buffer.flat.nbytes()), bucket.names});
  }
  return stats;
}

std::chrono::nanoseconds Reducer::waited() const { return waited_; }

int64_t Reducer::bucket_bytes() const {
  if (options_.rules.transient) return memory_.bytes();
  int64_t bytes = 0;
  for (const at::Tensor& gradient : gradients()) bytes += static_cast<int64_t>(gradient.nbytes());
  return bytes;
}

std::vector<at::Tensor> Reducer::gradients() const {
  std::vector<at::Tensor> gradients;
  if (alone_) {
    for (const Slot& slot : slots_) {
      if (slot.parameter.grad().defined()) gradients.push_back(slot.parameter.grad());
    }
  } else {
    for (const Bucket& bucket : buckets_) gradients.push_back(bucket.buffer.flat);
  }
  return gradients;
}

// --- while backward runs ---

void Reducer::on_gradient(size_t index, const at::Tensor& incoming) {
  const base::MutexLock lock(mutex_);
  const int backward = torch::autograd::get_current_graph_task_id();
  if (backward != backward_) abandon_backward();
  Slot& slot = slots_[index];
  if (incoming.defined()) {
    if (incoming.layout() != at::kStrided) {
      throw ConfigError("grad",
                        fmt::format("sparse gradients are not supported; make this parameter's gradient "
                                    "dense (Embedding: sparse(false)): {}",
                                    slot.name));
    }
    slot.last_used = clock_;
  }
  move_into_bucket(slot);
  if (!sync_) return;
  if (!in_backward_) begin_backward(backward);
  mark_ready(slot);
}

void Reducer::move_into_bucket(Slot& slot) {
  if (alone_) return;
  at::Tensor& gradient = slot.parameter.mutable_grad();
  if (gradient.is_same(slot.view)) return;
  const at::NoGradGuard no_grad;
  open(buckets_[slot.bucket]);
  if (!gradient.defined()) {
    slot.view.zero_();
  } else if (is_plain_copy(gradient, slot.view)) {
    // A small model has many of these, and each copy_() costs microseconds.
    std::memcpy(slot.view.mutable_data_ptr(), gradient.const_data_ptr(), gradient.nbytes());
  } else {
    slot.view.copy_(gradient);
  }
  gradient = slot.view;
}

// An exception may have ended the last backward between launch and wait: its collectives still write
// to the buckets.
void Reducer::abandon_backward() {
  if (!in_backward_) return;
  wait_for_buckets();
  in_backward_ = false;
}

void Reducer::begin_backward(int backward) {
  for (Bucket& bucket : buckets_) bucket.missing = bucket.slots.size();
  if (learned_) {
    for (Slot& slot : slots_) {
      if (slot.expected) continue;
      // Its bucket may start before the end of backward, so its contribution is written now.
      --buckets_[slot.bucket].missing;
      clear_unless_contributed(slot);
    }
  }
  backward_ = backward;
  ready_ = 0;
  next_launch_ = 0;
  next_poke_ = 0;
  next_wait_ = 0;
  in_backward_ = true;
  torch::autograd::Engine::get_default_engine().queue_callback([this] { finish_backward(); });
}

void Reducer::mark_ready(Slot& slot) {
  if (slot.last_backward == backward_) {
    throw ConfigError("grad",
                      fmt::format("a parameter got two gradients in one backward, which a backward inside "
                                  "a backward does: {}",
                                  slot.name));
  }
  if (!slot.expected) {
    throw ConfigError("grad", fmt::format("static_graph: a parameter that the first step did not use got a "
                                          "gradient; use find_unused_parameters instead: {}",
                                          slot.name));
  }
  slot.last_backward = backward_;
  ++ready_;
  if (--buckets_[slot.bucket].missing == 0) {
    launch_full_buckets();
  } else {
    poke();
  }
}

void Reducer::launch_full_buckets() {
  if (options_.rules.late) return;
  while (next_launch_ < buckets_.size() && buckets_[next_launch_].missing == 0) launch(next_launch_++);
  if (!options_.rules.transient) return;
  while (next_launch_ - next_wait_ > kTransientInFlight) wait_for(buckets_[next_wait_++]);
}

void Reducer::launch(size_t index) {
  Bucket& bucket = buckets_[index];
  const at::Tensor& flat = bucket.buffer.flat;
  if (flat.numel() == 0 || alone_) return;
  if (options_.hook) {
    bucket.reduction = options_.hook({index, buckets_.size(), flat, bucket.names}, communicator_);
  } else {
    bucket.reduction.work = communicator_.all_reduce(flat, ReduceOp::kMean);
  }
}

// Backends on the CPU make progress only when a caller polls them. On a GPU collectives progress
// alone, and one that is being recorded into a graph must not be polled.
void Reducer::poke() {
  if (next_poke_ == next_launch_ || !buckets_[next_poke_].buffer.flat.is_cpu()) return;
  if (buckets_[next_poke_].reduction.work.done()) ++next_poke_;
}

// --- at the end of backward ---

void Reducer::finish_backward() {
  const base::MutexLock lock(mutex_);
  // A backward that continues after one inside it has two callbacks.
  if (!in_backward_) return;
  const at::NoGradGuard no_grad;
  const bool exchange = exchanges_usage();
  if (ready_ != slots_.size()) account_for_missing();
  while (next_launch_ < buckets_.size()) launch(next_launch_++);
  Work usage;
  if (exchange) usage = start_usage_exchange();
  wait_for_buckets();
  if (exchange) learn_usage(std::move(usage));
  if (tolerates_unused() && !options_.rules.transient) set_unused_gradients();
  last_reduced_ = ++clock_;
  in_backward_ = false;
}

// Parameters whose hook did not run contribute the sum of earlier backwards without sync, or
// nothing.
void Reducer::account_for_missing() {
  std::vector<std::string_view> lost;
  for (Slot& slot : slots_) {
    if (slot.last_backward == backward_ || !slot.expected) continue;
    const bool may_miss = exchanges_usage() || has_contribution(slot) ||
                          (options_.find_unused_parameters && !options_.static_graph) ||
                          (options_.rules.transient && tolerates_unused());
    if (!may_miss) {
      lost.push_back(slot.name);
    } else {
      clear_unless_contributed(slot);
    }
  }
  if (lost.empty()) return;
  // Started buckets stay in flight until abandon_backward(): waiting here could hang behind a rank
  // that has stopped, and hide this error.
  const char* advice =
      options_.static_graph
          ? "static_graph: parameters that the first step used got no gradient in this step; "
            "use find_unused_parameters instead"
          : "parameters got no gradient in this step; set find_unused_parameters or take them "
            "out of the model";
  throw ConfigError("grad", fmt::format("{}: {}", advice, fmt::join(lost, ", ")));
}

void Reducer::clear_unless_contributed(Slot& slot) {
  if (alone_) return;
  if (slot.last_used < last_cleared_ || !slot.parameter.grad().defined()) {
    const at::NoGradGuard no_grad;
    open(buckets_[slot.bucket]);
    slot.view.zero_();
  } else {
    move_into_bucket(slot);
  }
}

Work Reducer::start_usage_exchange() {
  const at::Tensor local = at::empty({usage_.numel()}, at::kInt);
  auto* used = local.data_ptr<int>();
  for (size_t i = 0; i < slots_.size(); ++i) used[i] = has_contribution(slots_[i]) ? 1 : 0;
  usage_.copy_(local);
  return communicator_.all_reduce(usage_, ReduceOp::kMax);
}

void Reducer::learn_usage(Work usage) {
  usage.wait();
  const at::Tensor global = usage_.cpu();
  const auto* used = global.data_ptr<int>();
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].used_somewhere = used[i] != 0;
    if (options_.static_graph) slots_[i].expected = has_contribution(slots_[i]);
  }
  learned_ = options_.static_graph;
}

void Reducer::set_unused_gradients() {
  for (Slot& slot : slots_) {
    at::Tensor& gradient = slot.parameter.mutable_grad();
    if (slot.used_somewhere) {
      if (!alone_ && !gradient.is_same(slot.view)) gradient = slot.view;
      slot.last_used = clock_;
    } else if (slot.last_used < last_cleared_) {
      // Undefined, not zero: optimizers skip it, as without DataParallel.
      gradient = at::Tensor();
    }
  }
}

void Reducer::wait_for_buckets() {
  const auto start = std::chrono::steady_clock::now();
  while (next_wait_ < next_launch_) wait_for(buckets_[next_wait_++]);
  waited_ += std::chrono::steady_clock::now() - start;
}

void Reducer::wait_for(Bucket& bucket) {
  PendingReduction reduction = std::move(bucket.reduction);
  bucket.reduction = {};
  reduction.work.wait();
  if (reduction.finish) reduction.finish();
  close(bucket);
}

}  // namespace lockstep::parallel
