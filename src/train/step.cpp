#include "train/step.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <lockstep/sharded.h>
#include <torch/torch.h>

#include <cmath>

#include "checkpoint/reader.h"
#include "parallel/parallel_model.h"

namespace lockstep::train {
namespace {

void add_kind(const Batch& batch, std::vector<int64_t>& kind) {
  kind.push_back(static_cast<int64_t>(batch.tensors.size()));
  for (const at::Tensor& tensor : batch.tensors) {
    kind.push_back(static_cast<int64_t>(tensor.scalar_type()));
    kind.push_back(tensor.dim());
    kind.insert(kind.end(), tensor.sizes().begin(), tensor.sizes().end());
    kind.insert(kind.end(), tensor.strides().begin(), tensor.strides().end());
  }
  kind.push_back(static_cast<int64_t>(batch.parts.size()));
  for (const BatchPart& part : batch.parts) add_kind(part.batch, kind);
}

}  // namespace

std::vector<int64_t> StepBatches::kind() const {
  std::vector<int64_t> kind;
  for (const Batch& batch : batches_) add_kind(batch, kind);
  return kind;
}

void add_weighted(LossResult& total, const LossResult& part, double weight) {
  const auto add = [weight](const at::Tensor& sum, const at::Tensor& value) {
    const at::Tensor scaled = weight == 1 ? value.detach() : value.detach() * weight;
    return sum.defined() ? sum + scaled : scaled;
  };
  total.loss = add(total.loss, part.loss);
  for (const auto& [name, value] : part.metrics) total.metrics[name] = add(total.metrics[name], value);
  for (const auto& [name, counts] : part.counts) {
    MetricCounts& sum = total.counts[name];
    const at::Tensor own = counts.counts.detach();
    at::Tensor both = own;
    if (sum.counts.defined()) both = counts.appended ? at::cat({sum.counts, own}) : sum.counts + own;
    sum = {both, counts.value, counts.appended};
  }
}

LossResult Step::forward(const Batch& batch) const {
  const Autocast autocast(config().precision, world().device().type());
  try {
    LossResult result = parts_.loss(batch, parts_.model);
    if (!result.loss.defined() || result.loss.numel() != 1) {
      throw ConfigError("train", fmt::format("the loss of a batch must be one number: it has {}",
                                             result.loss.defined() ? result.loss.numel() : 0));
    }
    if (result.loss.is_complex()) {
      throw ConfigError("train",
                        "the loss of a batch must be a real number, and it is complex: take its abs()");
    }
    for (const auto& [name, value] : result.metrics) {
      if (value.defined() && value.numel() == 1) continue;
      throw ConfigError("train", fmt::format("the metric '{}' of a batch must be one number", name));
    }
    for (const auto& [name, counts] : result.counts) {
      if (result.metrics.contains(name) || name == "loss") {
        throw ConfigError("train",
                          fmt::format("two metrics have the name '{}': give one another name", name));
      }
      if (!counts.counts.defined() || counts.counts.numel() == 0 || !counts.value) {
        throw ConfigError("train",
                          fmt::format("the metric '{}' needs counts and a function for its value", name));
      }
    }
    return result;
  } catch (const c10::Error& error) {
    throw ConfigError("train",
                      fmt::format("the model or the loss failed on a batch of {}, parameters are {}: {}",
                                  describe(batch), config().dtype, error.what_without_backtrace()));
  }
}

bool Step::accepts_loss(double loss) { return std::isfinite(loss); }

std::vector<GradientStatistics> Step::gradient_statistics(bool) { return {}; }

ShardedModel* Step::sharded() const { return parallel().sharded(); }

void Step::finish_update() const {
  if (ShardedModel* model = sharded()) model->finish_step();
}

void Step::restore_weights(const checkpoint::Reader& reader) { parallel().restore_weights(reader); }

void Step::restore_state(const checkpoint::Reader& reader) {
  if (torch::optim::Optimizer* const own = optimizer()) {
    if (!reader.metadata().contains("optimizer")) {
      throw ConfigError("train", fmt::format("the checkpoint '{}' holds no optimizer with gradients",
                                             reader.folder().string()));
    }
    parallel().restore_optimizer(reader, *own);
  }
  restore_rest(reader);
}

}  // namespace lockstep::train
