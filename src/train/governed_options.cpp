#include "train/governed_options.h"

namespace lockstep::train {

std::vector<GovernedOption> governed_changes(const DeepSpeedConfig& file, const Json& before,
                                             const Json& after) {
  std::vector<GovernedOption> changes;
  const auto look_at = [&](bool governs, const char* name, const char* key) {
    const Json unset;
    if (governs && before.value(name, unset) != after.value(name, unset)) changes.push_back({name, key});
  };
  const bool has_batch = file.train_batch_size || file.train_micro_batch_size_per_gpu;
  look_at(has_batch, "batch_size", "train_micro_batch_size_per_gpu");
  look_at(true, "accumulate_steps", "gradient_accumulation_steps");
  look_at(true, "dtype", "bf16 or fp16");
  look_at(true, "precision", "torch_autocast");
  look_at(true, "clip_grad_norm", "gradient_clipping");
  look_at(true, "zero_stage", "zero_optimization.stage");
  look_at(true, "zero_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold");
  look_at(true, "zero_overlap_gather", "zero_optimization.overlap_comm");
  look_at(true, "zero_offload_optimizer", "zero_optimization.offload_optimizer.device");
  look_at(true, "zero_offload_param", "zero_optimization.offload_param.device");
  look_at(true, "zero_nvme_path", "zero_optimization.offload_optimizer.nvme_path");
  look_at(true, "find_unused_parameters", "zero_optimization.ignore_unused_parameters");
  // Of programs.
  look_at(file.optimizer.exists(), "lr", "optimizer.params.lr");
  look_at(file.optimizer.exists(), "base_lr", "optimizer.params.lr");
  look_at(file.optimizer.exists(), "momentum", "optimizer.params.momentum");
  look_at(file.optimizer.exists(), "weight_decay", "optimizer.params.weight_decay");
  look_at(file.scheduler.exists(), "gamma", "scheduler.params");
  return changes;
}

}  // namespace lockstep::train
