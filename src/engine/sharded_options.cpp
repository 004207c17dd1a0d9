#include "engine/sharded_options.h"

#include <algorithm>
#include <limits>

namespace lockstep::engine {
namespace {

int64_t bucket_bytes(const DeepSpeedConfig& config, int64_t otherwise) {
  const DeepSpeedConfig::Zero defaults;
  int64_t elements = std::numeric_limits<int64_t>::max();
  const auto limit = [&](int64_t wanted, int64_t usual) {
    if (wanted != usual) elements = std::min(elements, std::max<int64_t>(1, wanted));
  };
  limit(config.zero.reduce_bucket_size, defaults.reduce_bucket_size);
  limit(config.zero.allgather_bucket_size, defaults.allgather_bucket_size);
  if (config.zero.stage == 3) limit(config.zero.sub_group_size, defaults.sub_group_size);
  const auto width = static_cast<int64_t>(c10::elementSize(scalar_type(config.dtype())));
  if (elements == std::numeric_limits<int64_t>::max()) return otherwise;
  return elements > std::numeric_limits<int64_t>::max() / width ? std::numeric_limits<int64_t>::max()
                                                                : elements * width;
}

OffloadDevice device_of(DeepSpeedConfig::OffloadDevice device) {
  switch (device) {
    case DeepSpeedConfig::OffloadDevice::kCpu: return OffloadDevice::kCpu;
    case DeepSpeedConfig::OffloadDevice::kNvme: return OffloadDevice::kNvme;
    case DeepSpeedConfig::OffloadDevice::kNone: break;
  }
  return OffloadDevice::kNone;
}

void set_offload(const DeepSpeedConfig& config, ShardedOptions& options) {
  const DeepSpeedConfig::OffloadOptimizer& optimizer = config.zero.offload_optimizer;
  options.offload_optimizer = {.device = device_of(optimizer.device),
                               .nvme_path = optimizer.nvme_path.value_or(""),
                               .pin_memory = optimizer.pin_memory,
                               .buffer_count = optimizer.buffer_count,
                               .pipeline_read = optimizer.pipeline_read,
                               .pipeline_write = optimizer.pipeline_write};
  const DeepSpeedConfig::OffloadParam& parameters = config.zero.offload_param;
  options.offload_param = {.device = device_of(parameters.device), .pin_memory = parameters.pin_memory};
  if (optimizer.device == DeepSpeedConfig::OffloadDevice::kNvme) {
    options.aio = {.block_size = config.aio.block_size, .queue_depth = config.aio.queue_depth};
  }
}

bool may_leave_parameters_unused(const DeepSpeedConfig& config) {
  if (!config.zero.ignore_unused_parameters) return false;
  return config.zero.stage < 3 || config.places.count("zero_optimization.ignore_unused_parameters") > 0;
}

}  // namespace

c10::ScalarType scalar_type(DeepSpeedConfig::Dtype dtype) {
  switch (dtype) {
    case DeepSpeedConfig::Dtype::kFp16: return c10::ScalarType::Half;
    case DeepSpeedConfig::Dtype::kBf16: return c10::ScalarType::BFloat16;
    case DeepSpeedConfig::Dtype::kFp32: break;
  }
  return c10::ScalarType::Float;
}

ShardedOptions sharded_options(const DeepSpeedConfig& config) {
  ShardedOptions options;
  options.stage = static_cast<int>(config.zero.stage);
  options.find_unused_parameters = may_leave_parameters_unused(config);
  options.bucket_cap_bytes = bucket_bytes(config, options.bucket_cap_bytes);
  options.persistence_threshold = config.zero.param_persistence_threshold;
  options.persistence_limit = config.zero.model_persistence_threshold;
  options.prefetch = config.zero.prefetch_bucket_size > 0;
  options.prefetch_limit = config.zero.prefetch_bucket_size;
  options.overlap = config.zero.overlap_comm.value_or(true);
  options.overlap_gather = config.zero.overlap_comm.value_or(false);
  if (config.communication_data_type) {
    options.communication_dtype = scalar_type(*config.communication_data_type);
  }
  options.sum_gradients = config.gradient_allreduce_op == DeepSpeedConfig::GradientOp::kSum;
  options.gradient_predivide_factor = config.gradient_predivide_factor;
  // DeepSpeed, too, divides before the sum wherever it scatters, whatever prescale_gradients says.
  options.divide_after_sum = config.zero.stage == 0 && !config.prescale_gradients && !options.sum_gradients;
  options.allow_untested_optimizer = config.zero_allow_untested_optimizer;
  set_offload(config, options);
  options.autocast_dtype = autocast_dtype(config, c10::DeviceType::CPU);  // both have 16 bit
  return options;
}

std::optional<c10::ScalarType> autocast_dtype(const DeepSpeedConfig& config, c10::DeviceType device) {
  if (!config.torch_autocast.enabled) return std::nullopt;
  const auto usual =
      device == c10::DeviceType::CPU ? DeepSpeedConfig::Dtype::kBf16 : DeepSpeedConfig::Dtype::kFp16;
  return scalar_type(config.torch_autocast.dtype.value_or(usual));
}

std::optional<GradScalerOptions> loss_scale_options(const DeepSpeedConfig& config, c10::DeviceType device) {
  GradScalerOptions options;
  if (config.fp16.enabled) {
    options.dynamic = config.fp16.has_dynamic_scale();
    if (options.dynamic) {
      options.deepspeed =
          DeepSpeedScaleOptions{.initial_scale_power = config.fp16.initial_scale_power,
                                .loss_scale_window = config.fp16.loss_scale_window,
                                .hysteresis = config.fp16.hysteresis,
                                .consecutive_hysteresis = config.fp16.consecutive_hysteresis,
                                .min_loss_scale = static_cast<double>(config.fp16.min_loss_scale)};
    } else {
      options.init_scale = config.fp16.loss_scale;
    }
    return options;
  }
  if (config.bf16.enabled && config.bf16.check_grad_overflow) {
    options.init_scale = 1;
    options.dynamic = false;
    return options;
  }
  if (autocast_dtype(config, device) == c10::ScalarType::Half) return options;
  return std::nullopt;
}

}  // namespace lockstep::engine
