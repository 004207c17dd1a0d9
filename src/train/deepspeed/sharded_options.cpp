#include "train/deepspeed/sharded_options.h"

namespace lockstep::deepspeed {
namespace {

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
  options.zero = config.zero_options();
  options.find_unused_parameters = may_leave_parameters_unused(config);
  if (config.communication_data_type) {
    options.communication_dtype = scalar_type(*config.communication_data_type);
  }
  options.sum_gradients = config.gradient_allreduce_op == DeepSpeedConfig::GradientOp::kSum;
  options.gradient_predivide_factor = config.gradient_predivide_factor;
  // DeepSpeed also divides before the sum when it scatters, independent of prescale_gradients.
  options.divide_after_sum = config.zero.stage == 0 && !config.prescale_gradients && !options.sum_gradients;
  options.allow_untested_optimizer = config.zero_allow_untested_optimizer;
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

}  // namespace lockstep::deepspeed
