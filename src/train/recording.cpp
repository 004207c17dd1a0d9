#include "train/recording.h"

#include <fmt/format.h>

namespace lockstep::train {

std::string objection_to_recording(const TrainConfig& config, const RecordingFacts& facts) {
  if (!facts.optimizer_objection.empty()) {
    return fmt::format("cuda_graph cannot record this optimizer: {}", facts.optimizer_objection);
  }
  if (facts.has_own_step) {
    return "cuda_graph cannot record the program's own step (set_optimize_step): leave out cuda_graph";
  }
  if (config.zero.stage > 0) {
    return fmt::format("cuda_graph cannot record a sharded step: zero_stage is {}, set it to 0",
                       config.zero.stage);
  }
  if (!config.fused_optimizer) {
    return "cuda_graph records the fused optimizer only: fused_optimizer is false, set it to true";
  }
  if (config.precision == "fp16" && config.ema_decay > 0) {
    return "cuda_graph cannot record ema_decay with precision fp16, where the host must know whether there "
           "was a step: set precision to bf16, or ema_decay to 0";
  }
  if (!facts.device.is_cuda()) {
    return fmt::format(
        "cuda_graph records the kernels of a GPU, and this rank trains on {}: set "
        "compute_setup to gpu, or leave out cuda_graph",
        facts.device.str());
  }
  if (facts.num_ranks > 1 && facts.backend != "nccl") {
    return fmt::format(
        "cuda_graph records collectives of nccl only, and the backend of {} ranks is {}: set "
        "backend to nccl",
        facts.num_ranks, facts.backend);
  }
  return "";
}

}  // namespace lockstep::train
