#include "shard/memory_check.h"

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/named_tensors.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>

#include "base/log.h"
#include "cluster/memory_room.h"
#include "cluster/topology.h"
#include "shard/unit_map.h"

namespace lockstep::shard {

namespace {

constexpr int kLastStage = 3;
constexpr int kMostRanks = 1 << 16;

// What a rank may use for its model's states in all, and why.
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

// Memory that the allocator has taken and nobody uses is as good as free.
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

// What a plan takes of the memory that is compared: on a GPU what is not offloaded, on a CPU
// all but files.
int64_t needed_by(const ZeroPlan& plan, const torch::nn::Module& module, const ShardedOptions& options) {
  const auto parameters = module.parameters();
  const bool on_cpu =
      options.device ? options.device->is_cpu() : parameters.empty() || parameters.front().is_cpu();
  return on_cpu ? plan.memory.total() - plan.memory.nvme : plan.memory.device();
}

// What would fit, as advice.
std::string advice(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   ShardedOptions options, int64_t bytes) {
  for (++options.stage; options.stage <= kLastStage; ++options.stage) {
    const int64_t needed = needed_by(plan_zero(module, optimizer, ranks, options), module, options);
    if (needed <= bytes) return fmt::format("stage {} would fit with {}", options.stage, megabytes(needed));
  }
  options.stage = kLastStage;
  for (int more = 2 * ranks; more <= kMostRanks; more *= 2) {
    const int64_t needed = needed_by(plan_zero(module, optimizer, more, options), module, options);
    if (needed <= bytes) {
      return fmt::format("no stage fits on {} rank(s); stage 3 on {} would, with {}", ranks, more,
                         megabytes(needed));
    }
  }
  return "no stage fits, on any number of ranks: use a smaller model, or more of its parts inside Sharded<>";
}

// What cannot be divided has no other stage to try.
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
      options.stage, megabytes(needed), communicator.rank(), megabytes(allowed->bytes), allowed->reason,
      advice(module, optimizer, communicator.size(), options, allowed->bytes));
}

}  // namespace

void warn_of_casts(torch::nn::Module& module, const Communicator& communicator,
                   const ShardedOptions& options) {
  if (options.stage < kLastStage || !options.autocast_dtype || communicator.rank() != 0) return;
  const UnitMap map(module);
  int64_t elements = 0;
  for (const auto& [name, tensor] : named_parameters(module)) {
    const bool divided = tensor.requires_grad() && tensor.scalar_type() == at::kFloat &&
                         tensor.numel() >= options.persistence_threshold && map.of(tensor) > 0;
    if (divided && !map.recomputes(map.of(tensor))) elements += tensor.numel();
  }
  if (elements == 0) return;
  const bool is_half = *options.autocast_dtype == at::kHalf;
  base::log_warning(
      "shard",
      "stage 3 divides the parameters, but with precision {} every rank keeps a 16-bit copy of all of them "
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

}  // namespace lockstep::shard
