#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>
#include <lockstep/deepspeed_config.h>
#include <lockstep/grad_scaler.h>
#include <lockstep/sharded_model.h>

#include <optional>

namespace lockstep::engine {

c10::ScalarType scalar_type(DeepSpeedConfig::Dtype dtype);

// How the configuration divides a model. Three choices are ours:
// - a bucket size that is DeepSpeed's default (half a milliard elements) leaves that of
//   ShardedOptions; another one counts, and is the size for reducing, gathering and updating;
// - communication overlaps backward unless overlap_comm is false;
// - at stage 3 parameters may go without gradient only where the file itself says
//   ignore_unused_parameters: it keeps all gradients until the end of backward.
ShardedOptions sharded_options(const DeepSpeedConfig& config);

// What autocast computes in; nothing where the configuration has none.
std::optional<c10::ScalarType> autocast_dtype(const DeepSpeedConfig& config, c10::DeviceType device);

// How losses are scaled and overflows counted; nothing where no step is ever skipped. With
// bf16 the scale is 1 and stays so.
std::optional<GradScalerOptions> loss_scale_options(const DeepSpeedConfig& config, c10::DeviceType device);

}  // namespace lockstep::engine
