#include "parallel/zero_plan.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/log.h"
#include "cluster/node_resources.h"
#include "config/zero_options.h"
#include "parallel/flat_buffer.h"
#include "parallel/model_layout.h"
#include "parallel/reducer.h"
#include "parallel/shard_optimizer.h"
#include "parallel/unit_schedule.h"

namespace lockstep::parallel {

namespace {

// Counts what LentMemory would allocate.
class LentBytes {
 public:
  void lend(size_t borrower, int64_t needed) {
    if (needed == 0 || lent_.count(borrower) > 0) return;
    int64_t block = needed;
    if (const auto found = pick_block(free_, needed)) {
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

int64_t bytes_of(const BucketLayout& layout) {
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
  void wait_for_updates(size_t /*unit*/) override {}
  void forget_free() override {}
  int64_t total() const { return bytes_.total(); }

 private:
  const ModelLayout& layout_;
  LentBytes bytes_;
};

// Runs the events of training steps, without tensors.
class Rehearsal {
 public:
  Rehearsal(const ModelLayout& layout, const std::vector<LayoutParameter>& parameters,
            const std::vector<size_t>& parents, const ShardedOptions& options)
      : layout_(layout),
        parameters_(parameters),
        parents_(parents),
        late_(options.zero.stage == 3 && options.find_unused_parameters),
        gatherer_(layout),
        schedule_(layout.by_unit(parents.size() + 1), gatherer_,
                  options.zero.prefetch ? options.zero.prefetch_limit : 0) {
    bucket_of_.resize(parameters.size());
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
      for (const BucketSlot& slot : layout.buckets[i].layout.slots) bucket_of_[slot.item] = i;
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

  // Gradients pass through the end of a unit before the units inside it.
  void enter(size_t unit) {
    if (unit == 0 || in_backward_[unit]) return;
    enter(parents_[unit - 1]);
    in_backward_[unit] = true;
    schedule_.before_backward(unit);
  }

  void launch_full() {
    while (next_launch_ < layout_.buckets.size() && missing_[next_launch_] == 0) launch();
    while (next_launch_ - next_wait_ > kTransientInFlight) gradients_.take_back(next_wait_++);
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

// Bytes that a rank lends to gradients (from stage 2 on) and to parameters (stage 3) in its first
// steps, and keeps. Uses the rules by which a training lends them; units run in the order of their
// numbers, and gradients arrive in reverse order of registration. `parameters` are those of the
// layout, `parents` those of UnitMap.
int64_t plan_buffers(const ModelLayout& layout, const std::vector<LayoutParameter>& parameters,
                     const std::vector<size_t>& parents, const ShardedOptions& options) {
  if (options.zero.stage < 2) return 0;
  Rehearsal rehearsal(layout, parameters, parents, options);
  // The second step knows the order of units and prefetches.
  rehearsal.step();
  rehearsal.step();
  return rehearsal.total();
}

ZeroPlan::Bucket described(const LayoutBucket& bucket, const std::vector<NamedParameter>& parameters,
                           int ranks) {
  ZeroPlan::Bucket result{.dtype = bucket.layout.dtype,
                          .elements = bucket.layout.payload,
                          .padding = bucket.layout.numel - bucket.layout.payload,
                          .part = bucket.layout.numel / ranks,
                          .resident = bucket.resident,
                          .group = bucket.group,
                          .unit = bucket.unit,
                          .parameters = {}};
  for (const BucketSlot& slot : bucket.layout.slots) result.parameters.push_back(parameters[slot.item].name);
  return result;
}

void count_bucket(ShardedModel::Memory& memory, const LayoutBucket& bucket, const ShardedOptions& options,
                  int ranks, const StateBytes& state_bytes, bool masters) {
  const int stage = options.zero.stage;
  const bool offloads_state = options.zero.offload_optimizer.device != OffloadDevice::kNone;
  const bool is_nvme = options.zero.offload_optimizer.device == OffloadDevice::kNvme;
  const bool is_host_part = !bucket.resident && options.zero.offload_param.device != OffloadDevice::kNone;
  const auto bytes = [](int64_t elements, c10::ScalarType dtype) {
    return elements * static_cast<int64_t>(c10::elementSize(dtype));
  };
  const c10::ScalarType dtype = bucket.layout.dtype;
  const int64_t whole = bucket.layout.numel;
  const int64_t part = whole / ranks;
  memory.parameters += bytes(bucket.resident ? whole : part, dtype);
  memory.gradients += bytes(stage >= 2 ? part : whole, dtype);
  const bool has_digits = masters && needs_master(dtype);
  const bool is_apart = has_digits || (offloads_state && (is_nvme || !is_host_part));
  const int64_t master = is_apart ? bytes(part, has_digits ? at::kFloat : dtype) : 0;
  const int64_t state = state_bytes(bucket.group, masters ? master_dtype(dtype) : dtype, part);
  memory.master += master;
  memory.optimizer += state;
  if (is_host_part) memory.host += bytes(part, dtype);
  if (!offloads_state) return;
  (is_nvme ? memory.nvme : memory.host) += master + state;
  if (stage >= 2) memory.host += bytes(part, dtype);
}

// The most bytes that autocast's copies of float32 weights take at a time. Graphs keep them from forward
// to backward; a unit that computes its activations again keeps them only while it runs.
int64_t cast_bytes(const std::vector<LayoutParameter>& parameters, const UnitMap& map,
                   const ShardedOptions& options) {
  if (!options.autocast_dtype) return 0;
  const auto item = static_cast<int64_t>(c10::elementSize(*options.autocast_dtype));
  int64_t kept = 0;
  std::vector<int64_t> transient(map.units().size() + 1);
  for (const LayoutParameter& parameter : parameters) {
    if (parameter.item.dtype != at::kFloat) continue;
    (map.recomputes(parameter.unit) ? transient[parameter.unit] : kept) += parameter.item.numel * item;
  }
  return kept + *std::max_element(transient.begin(), transient.end());
}

}  // namespace

// --- options ---

ShardedOptions checked(ShardedOptions options) {
  const auto spell = [](std::string_view option) { return fmt::format("zero.{}", option); };
  if (const auto violation = config::find_violation(options.zero, spell)) {
    throw ConfigError("shard", violation->sentence);
  }
  const double factor = options.gradient_predivide_factor;
  if (factor <= 0 || !std::isfinite(factor)) {
    throw ConfigError("shard", fmt::format("gradient_predivide_factor must be positive: {}", factor));
  }
  if (options.sum_gradients && factor != 1) {
    throw ConfigError(
        "shard",
        fmt::format("sum_gradients divides nothing: leave gradient_predivide_factor at 1: {}", factor));
  }
  return options;
}

// --- the plan ---

ZeroPlan plan_states(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                     const ShardedOptions& options, bool masters) {
  if (ranks < 1) throw ConfigError("shard", fmt::format("the number of ranks must be positive: {}", ranks));
  checked(options);
  require_elementwise(optimizer, options.allow_untested_optimizer);
  const UnitMap map(module);
  ZeroPlan plan;
  std::vector<NamedParameter> parameters;
  for (const auto& [name, tensor] : named_parameters(module)) {
    (tensor.requires_grad() ? plan.parameter_bytes : plan.other_bytes) +=
        static_cast<int64_t>(tensor.nbytes());
    if (tensor.requires_grad()) parameters.push_back({name, tensor});
  }
  for (const auto& [name, tensor] : named_buffers(module)) {
    plan.other_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  const std::vector<int> groups = groups_of(optimizer, parameters);
  std::vector<LayoutParameter> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    places.push_back({{tensor.numel(), tensor.scalar_type(), tensor.device()}, groups[i], map.of(tensor)});
    plan.elements += tensor.numel();
  }
  const int sharing = options.zero.stage == 0 ? 1 : ranks;
  const ModelLayout layout = lay_out(places, options.zero, sharing);
  const StateBytes state_bytes(optimizer);
  for (const LayoutBucket& bucket : layout.buckets) {
    count_bucket(plan.memory, bucket, options, sharing, state_bytes, masters);
    plan.buckets.push_back(described(bucket, parameters, sharing));
  }
  plan.memory.buffers = plan_buffers(layout, places, map.parents(), options);
  plan.memory.casts = cast_bytes(places, map, options);
  return plan;
}

// --- whether it fits ---

namespace {

constexpr int kLastStage = 3;
constexpr int kMostRanks = 1 << 16;

// The memory that a rank may use for its model's states, and why.
struct Allowance {
  int64_t bytes = 0;
  std::string reason;
};

std::string megabytes(int64_t bytes) { return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6); }

int ranks_on_this_host(const Communicator& communicator) {
  const std::string own = cluster::host_name();
  const auto hosts = communicator.all_gather_bytes(own);
  return static_cast<int>(std::count(hosts.begin(), hosts.end(), own));
}

// Memory that the allocator has reserved and not given out counts as free.
Allowance device_room(c10::Device device) {
  const auto [free, total] = at::accelerator::getMemoryInfo(device.index());
  const auto stats = at::accelerator::getDeviceStats(device.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const int64_t unused = stats.reserved_bytes[kAll].current - stats.allocated_bytes[kAll].current;
  return {static_cast<int64_t>(free) + std::max<int64_t>(0, unused),
          fmt::format("of {} on {}", megabytes(static_cast<int64_t>(total)), device.str())};
}

std::optional<Allowance> host_room(int ranks_here) {
  std::optional<Allowance> least;
  for (const auto& room : {cluster::process_memory_room(), cluster::group_memory_room()}) {
    if (!room) continue;
    const int sharing = room->is_shared ? ranks_here : 1;
    const int64_t bytes = room->bytes / sharing;
    if (least && least->bytes <= bytes) continue;
    least = Allowance{bytes, fmt::format("{} of {}{}", room->limit, megabytes(room->limit_bytes),
                                         sharing > 1 ? fmt::format(" for {} ranks", sharing) : "")};
  }
  return least;
}

std::optional<Allowance> allowance(const torch::nn::Module& module, const ShardedOptions& options,
                                   int ranks_here, int64_t parameter_bytes) {
  const auto parameters = module.parameters();
  std::optional<Allowance> least;
  if (!parameters.empty()) {
    const c10::Device now = parameters.front().device();
    const c10::Device later = options.device.value_or(now);
    if (later.is_cpu()) least = host_room(ranks_here);
    if (later.is_cuda()) least = device_room(later);
    if (least && now.type() == later.type()) least->bytes += parameter_bytes;
  }
  if (options.memory_limit_bytes && (!least || *options.memory_limit_bytes < least->bytes)) {
    least = Allowance{*options.memory_limit_bytes, "memory_limit_bytes"};
  }
  return least;
}

// The bytes of a plan that count: on a GPU what is not offloaded, on a CPU all but files.
int64_t needed_by(const ZeroPlan& plan, const torch::nn::Module& module, const ShardedOptions& options) {
  const auto parameters = module.parameters();
  const bool on_cpu =
      options.device ? options.device->is_cpu() : parameters.empty() || parameters.front().is_cpu();
  return on_cpu ? plan.memory.total() - plan.memory.nvme : plan.memory.device();
}

// What would fit.
std::string advice(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   ShardedOptions options, int64_t bytes) {
  for (++options.zero.stage; options.zero.stage <= kLastStage; ++options.zero.stage) {
    const int64_t needed = needed_by(plan_zero(module, optimizer, ranks, options), module, options);
    if (needed <= bytes)
      return fmt::format("stage {} would fit with {}", options.zero.stage, megabytes(needed));
  }
  options.zero.stage = kLastStage;
  for (int more = 2 * ranks; more <= kMostRanks; more *= 2) {
    const int64_t needed = needed_by(plan_zero(module, optimizer, more, options), module, options);
    if (needed <= bytes) {
      return fmt::format("no stage fits on {} rank(s); stage 3 on {} would, with {}", ranks, more,
                         megabytes(needed));
    }
  }
  return "no stage fits, on any number of ranks: use a smaller model, or more of its parts inside Sharded<>";
}

// A model that cannot be sharded has no other stage to try.
std::optional<ZeroPlan> try_plan(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                                 const ShardedOptions& options, bool masters) {
  try {
    return plan_states(module, optimizer, ranks, options, masters);
  } catch (const ConfigError&) {
    return std::nullopt;
  }
}

std::string problem(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                    const Communicator& communicator, const ShardedOptions& options, bool masters,
                    int ranks_here) {
  const auto plan = try_plan(module, optimizer, communicator.size(), options, masters);
  if (!plan) return "";
  const auto allowed = allowance(module, options, ranks_here, plan->parameter_bytes);
  const int64_t needed = needed_by(*plan, module, options);
  if (!allowed || needed <= allowed->bytes) return "";
  return fmt::format(
      "the model does not fit: at stage {} its parameters, gradients and optimizer state take {} of rank {}, "
      "which may use {} ({}); {}",
      options.zero.stage, megabytes(needed), communicator.rank(), megabytes(allowed->bytes), allowed->reason,
      advice(module, optimizer, communicator.size(), options, allowed->bytes));
}

}  // namespace

void warn_of_casts(torch::nn::Module& module, const Communicator& communicator,
                   const ShardedOptions& options) {
  if (options.zero.stage < kLastStage || !options.autocast_dtype || communicator.rank() != 0) return;
  const UnitMap map(module);
  int64_t elements = 0;
  for (const auto& [name, tensor] : named_parameters(module)) {
    const bool sharded = tensor.requires_grad() && tensor.scalar_type() == at::kFloat &&
                         tensor.numel() >= options.zero.persistence_threshold && map.of(tensor) > 0;
    if (sharded && !map.recomputes(map.of(tensor))) elements += tensor.numel();
  }
  if (elements == 0) return;
  const bool is_half = *options.autocast_dtype == at::kHalf;
  base::log_warning(
      "shard",
      "stage 3 shards the parameters, but with precision {} every rank keeps a 16-bit copy of all of them "
      "from forward to backward, {}: set dtype to {} in place of precision (in a DeepSpeed file {} in place "
      "of torch_autocast), or let units compute their activations again (set_activation_checkpointing)",
      is_half ? "fp16" : "bf16", megabytes(2 * elements), is_half ? "float16" : "bfloat16",
      is_half ? "fp16" : "bf16");
}

void require_memory(torch::nn::Module& module, torch::optim::Optimizer& optimizer,
                    const Communicator& communicator, const ShardedOptions& options, bool masters) {
  const int ranks_here = ranks_on_this_host(communicator);
  const auto problems =
      communicator.all_gather_bytes(problem(module, optimizer, communicator, options, masters, ranks_here));
  for (const std::string& text : problems) {
    if (!text.empty()) throw ConfigError("shard", text);
  }
}

}  // namespace lockstep::parallel

namespace lockstep {

ZeroPlan plan_zero(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   const ShardedOptions& options) {
  return parallel::plan_states(module, optimizer, ranks, options, /*masters=*/true);
}

}  // namespace lockstep
