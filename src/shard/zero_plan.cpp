#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/named_tensors.h>
#include <lockstep/zero_plan.h>
#include <torch/torch.h>

#include <algorithm>

#include "shard/buffer_plan.h"
#include "shard/checked_options.h"
#include "shard/memory_check.h"
#include "shard/model_layout.h"
#include "shard/sharded_optimizer.h"
#include "shard/unit_map.h"

namespace lockstep {

namespace {

using shard::LayoutBucket;
using shard::LayoutParameter;
using shard::ModelLayout;

ZeroPlan::Bucket described(const LayoutBucket& bucket, const std::vector<shard::NamedParameter>& parameters,
                           int ranks) {
  ZeroPlan::Bucket result{.dtype = bucket.layout.dtype,
                          .elements = bucket.layout.payload,
                          .padding = bucket.layout.numel - bucket.layout.payload,
                          .part = bucket.layout.numel / ranks,
                          .resident = bucket.resident,
                          .group = bucket.group,
                          .unit = bucket.unit,
                          .parameters = {}};
  for (const grad::BucketSlot& slot : bucket.layout.slots)
    result.parameters.push_back(parameters[slot.item].name);
  return result;
}

void count_bucket(ShardedModel::Memory& memory, const LayoutBucket& bucket, const ShardedOptions& options,
                  int ranks, const shard::StateBytes& state_bytes, bool masters) {
  const int stage = options.stage;
  const bool offloads_state = options.offload_optimizer.device != OffloadDevice::kNone;
  const bool is_nvme = options.offload_optimizer.device == OffloadDevice::kNvme;
  const bool is_host_part = !bucket.resident && options.offload_param.device != OffloadDevice::kNone;
  const auto bytes = [](int64_t elements, c10::ScalarType dtype) {
    return elements * static_cast<int64_t>(c10::elementSize(dtype));
  };
  const c10::ScalarType dtype = bucket.layout.dtype;
  const int64_t whole = bucket.layout.numel;
  const int64_t part = whole / ranks;
  memory.parameters += bytes(bucket.resident ? whole : part, dtype);
  memory.gradients += bytes(stage >= 2 ? part : whole, dtype);
  const bool has_digits = masters && shard::needs_master(dtype);
  const bool is_apart = has_digits || (offloads_state && (is_nvme || !is_host_part));
  const int64_t master = is_apart ? bytes(part, has_digits ? at::kFloat : dtype) : 0;
  const int64_t state = state_bytes(bucket.group, masters ? shard::master_dtype(dtype) : dtype, part);
  memory.master += master;
  memory.optimizer += state;
  if (is_host_part) memory.host += bytes(part, dtype);
  if (!offloads_state) return;
  (is_nvme ? memory.nvme : memory.host) += master + state;
  if (stage >= 2) memory.host += bytes(part, dtype);
}

// The most that autocast's copies of float32 weights take at a time: graphs keep them from forward to
// backward, but those of a unit that computes its activations again while it runs.
int64_t cast_bytes(const std::vector<LayoutParameter>& parameters, const shard::UnitMap& map,
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

ZeroPlan shard::plan_states(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                            const ShardedOptions& options, bool masters) {
  if (ranks < 1) throw ConfigError("shard", fmt::format("the number of ranks must be positive: {}", ranks));
  shard::checked(options);
  shard::require_elementwise(optimizer, options.allow_untested_optimizer);
  const shard::UnitMap map(module);
  ZeroPlan plan;
  std::vector<shard::NamedParameter> parameters;
  for (const auto& [name, tensor] : named_parameters(module)) {
    (tensor.requires_grad() ? plan.parameter_bytes : plan.other_bytes) +=
        static_cast<int64_t>(tensor.nbytes());
    if (tensor.requires_grad()) parameters.push_back({name, tensor});
  }
  for (const auto& [name, tensor] : named_buffers(module)) {
    plan.other_bytes += static_cast<int64_t>(tensor.nbytes());
  }
  const std::vector<int> groups = shard::groups_of(optimizer, parameters);
  std::vector<LayoutParameter> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    places.push_back({{tensor.numel(), tensor.scalar_type(), tensor.device()}, groups[i], map.of(tensor)});
    plan.elements += tensor.numel();
  }
  const int sharing = options.stage == 0 ? 1 : ranks;
  const ModelLayout layout = shard::lay_out(places, options, sharing);
  shard::StateBytes state_bytes(optimizer);
  for (const LayoutBucket& bucket : layout.buckets) {
    count_bucket(plan.memory, bucket, options, sharing, state_bytes, masters);
    plan.buckets.push_back(described(bucket, parameters, sharing));
  }
  plan.memory.buffers = shard::plan_buffers(layout, places, map.parents(), options);
  plan.memory.casts = cast_bytes(places, map, options);
  return plan;
}

ZeroPlan plan_zero(torch::nn::Module& module, torch::optim::Optimizer& optimizer, int ranks,
                   const ShardedOptions& options) {
  return shard::plan_states(module, optimizer, ranks, options, /*masters=*/true);
}

}  // namespace lockstep
