#pragma once

#include <cstdint>
#include <string>

namespace lockstep {

// What a training divides over its ranks (ZeRO), and what it keeps in host memory or on a
// disk. ShardedOptions says more of each; a DeepSpeed configuration has all its details.
struct ZeroConfig {
  // 0 nothing, 1 the optimizer's state, 2 and gradients, 3 and parameters.
  int stage = 0;
  // Stage 3: parameters of fewer elements stay whole on every rank.
  int64_t persistence_threshold = 100'000;
  // From stage 1 on: updates of modules inside Sharded<> are gathered while the next forward
  // runs. Hooks and losses that read or write their parameters do it inside
  // Trainer::gather_parameters(); callbacks, averages and plots need not.
  bool overlap_gather = false;
  // Where the optimizer's state and float32 masters are: none (on the device); cpu, from
  // stage 1 on; nvme, at stage 3.
  std::string offload_optimizer = "none";
  // Where parameters are while nothing computes with them: none (on the device); cpu, at
  // stage 3 with offload_optimizer. The model stays in host memory then, and may be larger
  // than the device.
  std::string offload_param = "none";
  // For offload_optimizer nvme: a folder on that disk.
  std::string nvme_path;
};

}  // namespace lockstep
