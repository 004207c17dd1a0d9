#include "train/evaluator.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/loader.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "train/autocast.h"
#include "train/batch_source.h"
#include "train/evaluation_mode.h"

namespace lockstep::train {
namespace {

Loader own_part(const Loader& whole, const World& world) {
  if (whole.dataset_size() == 0) throw ConfigError("train", "nothing to evaluate: the dataset is empty");
  return whole.shard(world.rank(), world.size(), ShardKind::kEvaluation);
}

}  // namespace

Evaluation evaluate(const Loader& whole, const World& world, const Model& model, c10::ScalarType dtype,
                    const std::function<LossResult(const Batch&)>& forward, const TrainConfig& config,
                    const BatchHooks& hooks) {
  Loader loader = own_part(whole, world);
  const EvaluationMode mode(model);
  const torch::NoGradGuard no_grad;
  MetricSums sums(config.log_setup == "auto");
  for (const Batch& batch : loader.epoch(0)) {
    const Batch moved = to_device(batch, world.device(), dtype);
    hooks.start(moved);
    const LossResult result = forward(moved);
    sums.add(result, moved.size());
    hooks.end(result);
  }
  MetricSums::Means means = sums.over(world.communicator());
  Evaluation evaluation;
  evaluation.samples = static_cast<int64_t>(means.samples);
  evaluation.loss = means.values.at("loss");
  means.values.erase("loss");
  evaluation.metrics = std::move(means.values);
  return evaluation;
}

at::Tensor predict(const Loader& whole, const World& world, const Model& model, c10::ScalarType dtype,
                   const TrainConfig& config) {
  Loader loader = own_part(whole, world);
  const EvaluationMode mode(model);
  const torch::NoGradGuard no_grad;
  const Autocast autocast(config.precision, world.device().type());
  std::vector<at::Tensor> outputs;
  for (const Batch& batch : loader.epoch(0)) {
    outputs.push_back(model(to_device(batch, world.device(), dtype).data()));
  }
  // A rank without samples must still know what the others' look like: it runs the model
  // on one sample and gives none of it.
  if (outputs.empty()) {
    Loader one = whole.with_batch_size(1).shard(0, 1, ShardKind::kEvaluation);
    for (const Batch& batch : one.epoch(0)) {
      outputs.push_back(model(to_device(batch, world.device(), dtype).data()).narrow(0, 0, 0));
      break;
    }
  }
  const at::Tensor own = torch::cat(outputs).contiguous();
  return torch::cat(world.communicator().all_gather_uneven(own)).cpu();
}

}  // namespace lockstep::train
