#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>

#include <optional>

namespace lockstep::deepspeed {

c10::ScalarType scalar_type(DeepSpeedConfig::Dtype dtype);

// How the configuration shards a model and reduces gradients; includes DeepSpeedConfig::zero_options().
// At stage 3 parameters may have no gradient only if the file itself sets ignore_unused_parameters,
// because that keeps all gradients until the end of backward.
ShardedOptions sharded_options(const DeepSpeedConfig& config);

// The dtype of autocast; nullopt: the configuration has no autocast.
std::optional<c10::ScalarType> autocast_dtype(const DeepSpeedConfig& config, c10::DeviceType device);

// How losses are scaled and overflows are counted; nullopt: no step is ever skipped. With bf16 the
// scale is always 1.
std::optional<GradScalerOptions> loss_scale_options(const DeepSpeedConfig& config, c10::DeviceType device);

}  // namespace lockstep::deepspeed
