#include "train/recorded_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "comm/plugin.h"

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

namespace {

// Libraries choose algorithms and allocate workspaces in the first steps.
constexpr int64_t kStepsBefore = 3;

void for_each_tensor(Batch& batch, const Batch& from,
                     const std::function<void(at::Tensor&, const at::Tensor&)>& function) {
  for (size_t i = 0; i < batch.tensors.size(); ++i) function(batch.tensors[i], from.tensors[i]);
  for (size_t i = 0; i < batch.parts.size(); ++i) {
    for_each_tensor(batch.parts[i].batch, from.parts[i].batch, function);
  }
}

}  // namespace

RecordedStep::RecordedStep() = default;
RecordedStep::~RecordedStep() = default;

LossResult RecordedStep::run(StepBatches& batches, const Body& body) {
  replayed_ = false;
  std::vector<int64_t> kind = batches.kind();
  if (kind != kind_) {
    if (graph_) return body(batches);  // the last batch of an epoch may be smaller
    steps_before_ = 0;
    kind_ = std::move(kind);
  }
  if (!graph_) {
    if (steps_before_++ < kStepsBefore) return body(batches);
    record(batches, body);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    for_each_tensor(inputs_[i], batches.on_device(i), [](at::Tensor& input, const at::Tensor& value) {
      input.copy_(value, /*non_blocking=*/true);
    });
  }
  graph_->replay();
  replayed_ = true;
  return outcome_;
}

void RecordedStep::record(StepBatches& batches, const Body& body) {
  inputs_.clear();
  for (size_t i = 0; i < batches.size(); ++i) {
    const Batch& batch = batches.on_device(i);
    inputs_.push_back(batch);
    for_each_tensor(inputs_.back(), batch, [](at::Tensor& input, const at::Tensor& value) {
      input = torch::empty_strided(value.sizes(), value.strides(), value.options());
    });
  }
  StepBatches inputs = batches.with(inputs_);
  auto graph = comm::make_cuda_graph();
  try {
    graph->record([&] { outcome_ = body(inputs); });
  } catch (const std::exception& error) {
    throw ConfigError(
        "train", fmt::format("cuda_graph: the step cannot be recorded; model and loss must not read values "
                             "on the host (item(), cpu(), shapes that depend on the data): {}",
                             error.what()));
  }
  // The recorded step outlives autograd's graph.
  outcome_.loss = outcome_.loss.detach();
  for (auto& [name, value] : outcome_.metrics) value = value.detach();
  for (auto& [name, counts] : outcome_.counts) counts.counts = counts.counts.detach();
  graph_ = std::move(graph);
}

void RecordedStep::forget() {
  graph_.reset();
  inputs_.clear();
  kind_.clear();
  outcome_ = LossResult{at::Tensor()};
  replayed_ = false;
  steps_before_ = 0;
}

}  // namespace lockstep::train
