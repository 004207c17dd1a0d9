#include "train/deepspeed/supported.h"

#include <fmt/format.h>

#include <array>

#include "config/deepspeed/failure.h"

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;

bool is_adam(const C& c) {
  return c.optimizer.type == C::Optimizer::Type::kAdam || c.optimizer.type == C::Optimizer::Type::kAdamW;
}

bool offloads(const C& c) { return c.zero.offload_optimizer.device != C::OffloadDevice::kNone; }

constexpr std::array kUnsupported = {
    Unsupported{"zero_optimization.offload_optimizer.ratio",
                [](const C& c) { return offloads(c) && c.zero.offload_optimizer.ratio != 1; },
                "all of the optimizer's state is offloaded, or none: remove the line"},
    Unsupported{"aio.intra_op_parallelism",
                [](const C& c) {
                  return c.zero.offload_optimizer.device == C::OffloadDevice::kNvme &&
                         c.aio.intra_op_parallelism != 1;
                },
                "one thread submits to io_uring, which works in the background: remove the line"},
    Unsupported{
        "zero_optimization.stage3_max_live_parameters",
        [](const C& c) {
          return c.zero.stage == 3 && c.zero.max_live_parameters != C::Zero{}.max_live_parameters;
        },
        "the running unit and the next one are gathered, independent of their size: remove the line, and "
        "make the units (Sharded<>) smaller or set stage3_prefetch_bucket_size"},
    Unsupported{"zero_optimization.stage3_max_reuse_distance",
                [](const C& c) {
                  return c.zero.stage == 3 && c.zero.max_reuse_distance != C::Zero{}.max_reuse_distance;
                },
                "a unit is freed after its forward and gathered again for its backward: remove the line"},
    Unsupported{"activation_checkpointing.cpu_checkpointing",
                [](const C& c) { return c.activation_checkpointing.cpu_checkpointing; },
                "activations are not moved to CPU memory yet: set it to false"},
    Unsupported{"data_types.grad_accum_dtype",
                [](const C& c) { return c.data_types.grad_accum_dtype.value_or(c.dtype()) != c.dtype(); },
                "gradients are summed in the model's dtype: remove the line"},
    Unsupported{"optimizer.params.bias_correction",
                [](const C& c) { return is_adam(c) && !c.optimizer.bias_correction; },
                "Adam always corrects the bias here: set it to true"},
};

}  // namespace

void refuse(const C& config, std::span<const Unsupported> keys) {
  for (const Unsupported& unsupported : keys) {
    if (!unsupported.is_asked(config)) continue;
    deepspeed::fail_at(config, unsupported.key, fmt::format("{}: {}", unsupported.key, unsupported.reason));
  }
}

std::span<const Unsupported> unsupported_keys() { return kUnsupported; }

void require_supported(const C& config) { refuse(config, kUnsupported); }

}  // namespace lockstep::deepspeed
