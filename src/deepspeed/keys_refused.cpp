#include "deepspeed/key.h"

namespace lockstep::deepspeed {

using C = DeepSpeedConfig;

void add_refused_keys(std::vector<Key>& keys) {
  Section<C>(
      keys, "", [](auto& c) -> auto& { return c; })
      .refuse("wandb", {"enabled"},
              "Weights & Biases has no C++ client: use tensorboard, csv_monitor or MLflow")
      .refuse("comet", {"enabled"}, "Comet has no C++ client: use tensorboard, csv_monitor or MLflow")
      .refuse("amp", {"enabled"}, "Apex is a Python library: use fp16, bf16 or torch_autocast")
      .refuse("autotuning", {"enabled"}, "no run is started to try settings")
      .refuse("compression_training", {}, "models are not quantised or pruned")
      .refuse("quantize_training", {"enabled"}, "models are not quantised")
      .refuse("weight_quantization", {}, "models are not quantised")
      .refuse("progressive_layer_drop", {"enabled"}, "every layer takes part in every step")
      .refuse("eigenvalue", {"enabled"}, "it only steers quantisation")
      .refuse("curriculum_learning", {"enabled"}, "samples are drawn at random, not by difficulty")
      .refuse("data_efficiency", {"enabled"}, "samples are drawn at random, and no token is dropped")
      .refuse("elasticity", {"enabled"},
              "set the batch keys; a job may start again on another number of ranks")
      .refuse("sparse_attention", {}, "attention is the model's own")
      .refuse("tensor_parallel", {"autotp_size", "enabled"}, "layers are not split over ranks")
      .refuse("expert_parallel", {"enabled"}, "experts are not spread over ranks")
      .refuse("pipeline", {}, "layers are not spread over ranks")
      .refuse("hybrid_engine", {"enabled"}, "there is no inference engine")
      .refuse("compile", {"enabled", "deepcompile"}, "LibTorch compiles no graphs")
      .refuse("nebula", {"enabled"}, "it is a service of Azure: checkpoints are asynchronous here already")
      .refuse("datastates_ckpt", {}, "checkpoints are asynchronous here already");
}

namespace {

template <typename Type>
std::vector<std::string> names_in(uint32_t types) {
  std::vector<std::string> names;
  for (const auto& [name, type] : names_of(Type{})) {
    if ((types & type_bit(type)) != 0) names.emplace_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> type_names(const Key& key) {
  if (key.section() == "optimizer.params") return names_in<C::Optimizer::Type>(key.types);
  if (key.section() == "scheduler.params") return names_in<C::Scheduler::Type>(key.types);
  return {};
}

const std::vector<Key>& all_keys() {
  static const std::vector<Key> keys = [] {
    std::vector<Key> made;
    add_training_keys(made);
    add_optimizer_keys(made);
    add_scheduler_keys(made);
    add_precision_keys(made);
    add_zero_keys(made);
    add_output_keys(made);
    add_refused_keys(made);
    return made;
  }();
  return keys;
}

}  // namespace lockstep::deepspeed
