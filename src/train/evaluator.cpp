#include "train/evaluator.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/loader.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include "engine/autocast.h"
#include "train/batch_source.h"
#include "train/device_copy.h"
#include "train/evaluation_mode.h"

namespace lockstep::train {
namespace {

Loader own_part(const Loader& whole, const World& world) {
  if (whole.dataset_size() == 0) throw ConfigError("train", "nothing to evaluate: the dataset is empty");
  return whole.shard(world.rank(), world.size(), ShardKind::kEvaluation);
}

// This rank's batches of one loader, or of several side by side until the first one ends.
class EvaluationBatches {
 public:
  EvaluationBatches(const DataSource& data, const World& world) : named_(!data.loaders().empty()) {
    if (data.empty()) throw ConfigError("train", "nothing to evaluate: no data were given");
    if (data.loader() != nullptr) add("", *data.loader(), world);
    for (const auto& [name, loader] : data.loaders()) add(name, *loader, world);
  }

  bool next(Batch& batch) {
    batch = Batch();
    for (Stream& stream : streams_) {
      Batch* part = stream.epoch.next();
      if (part == nullptr) return false;
      add_part(batch, named_, stream.name, *part);
    }
    return true;
  }

 private:
  struct Stream {
    std::string name;
    Loader::Epoch epoch;
  };
  void add(const std::string& name, const Loader& whole, const World& world) {
    streams_.push_back({name, own_part(whole, world).epoch(0)});
  }

  const bool named_;
  std::vector<Stream> streams_;
};

}  // namespace

Evaluation evaluate(const DataSource& data, const World& world, const Model& model, c10::ScalarType dtype,
                    const std::function<LossResult(const Batch&)>& forward, const TrainConfig& config,
                    const BatchHooks& hooks) {
  EvaluationBatches batches(data, world);
  const EvaluationMode mode(model);
  const torch::NoGradGuard no_grad;
  MetricSums sums(config.log_setup == "auto");
  DeviceCopy copy_to_device(world.device(), dtype);
  for (Batch batch; batches.next(batch);) {
    const Batch moved = copy_to_device(batch);
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
  const engine::Autocast autocast(config.precision, world.device().type());
  std::vector<at::Tensor> outputs;
  DeviceCopy copy_to_device(world.device(), dtype);
  for (const Batch& batch : loader.epoch(0)) {
    outputs.push_back(model(copy_to_device(batch).data()));
  }
  // A rank without samples must still know what the others' look like: it runs the model
  // on one sample and gives none of it.
  if (outputs.empty()) {
    Loader one = whole.with_batch_size(1).shard(0, 1, ShardKind::kEvaluation);
    for (const Batch& batch : one.epoch(0)) {
      outputs.push_back(model(copy_to_device(batch).data()).narrow(0, 0, 0));
      break;
    }
  }
  const at::Tensor own = torch::cat(outputs).contiguous();
  return torch::cat(world.communicator().all_gather_uneven(own)).cpu();
}

}  // namespace lockstep::train
