#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>

#include <optional>

namespace lockstep::deepspeed {

c10::ScalarType scalar_type(DeepSpeedConfig::Dtype dtype);

// How the configuration shards a model: DeepSpeedConfig::zero_options(), and how gradients are
// reduced. At stage 3 parameters may go without gradient only if the file itself says
// ignore_unused_parameters, because that keeps all gradients until the end of backward.
ShardedOptions sharded_options(const DeepSpeedConfig& config);

// What autocast computes in; nothing where the configuration has none.
std::optional<c10::ScalarType> autocast_dtype(const DeepSpeedConfig& config, c10::DeviceType device);

// How losses are scaled and overflows counted; nothing where no step is ever skipped. With
// bf16 the scale is 1 and stays so.
std::optional<GradScalerOptions> loss_scale_options(const DeepSpeedConfig& config, c10::DeviceType device);

}  // namespace lockstep::deepspeed
