#include "train/recorded_step.h"

#include <fmt/format.h>
#include <lockstep/error.h>
#include <torch/torch.h>

#include "comm/plugin.h"

namespace lockstep::train {
namespace {

// Libraries choose their algorithms and take their workspaces in the first steps.
constexpr int64_t kStepsBefore = 3;

bool same_kind(const Batch& a, const Batch& b) {
  if (a.tensors.size() != b.tensors.size() || a.parts.size() != b.parts.size()) return false;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].sizes() != b.tensors[i].sizes() || a.tensors[i].strides() != b.tensors[i].strides() ||
        a.tensors[i].scalar_type() != b.tensors[i].scalar_type()) {
      return false;
    }
  }
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (!same_kind(a.parts[i].batch, b.parts[i].batch)) return false;
  }
  return true;
}

bool same_kind(const std::vector<Batch>& a, const std::vector<Batch>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](const Batch& x, const Batch& y) { return same_kind(x, y); });
}

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

LossResult RecordedStep::run(const std::vector<Batch>& batches, const Body& body) {
  if (!same_kind(batches, inputs_)) {
    if (graph_) return body(batches);  // the last batch of an epoch may be smaller
    steps_before_ = 0;
    inputs_ = batches;
  }
  if (!graph_) {
    if (steps_before_++ < kStepsBefore) return body(batches);
    record(batches, body);
  }
  for (size_t i = 0; i < batches.size(); ++i) {
    for_each_tensor(inputs_[i], batches[i], [](at::Tensor& input, const at::Tensor& value) {
      input.copy_(value, /*non_blocking=*/true);
    });
  }
  graph_->replay();
  return outcome_;
}

void RecordedStep::record(const std::vector<Batch>& batches, const Body& body) {
  inputs_ = batches;
  for (size_t i = 0; i < batches.size(); ++i) {
    for_each_tensor(inputs_[i], batches[i], [](at::Tensor& input, const at::Tensor& value) {
      input = torch::empty_strided(value.sizes(), value.strides(), value.options());
    });
  }
  auto graph = comm::make_cuda_graph();
  try {
    graph->record([&] { outcome_ = body(inputs_); });
  } catch (const std::exception& error) {
    throw ConfigError(
        "train", fmt::format("cuda_graph: the step cannot be recorded; model and loss must not read values "
                             "on the host (item(), cpu(), shapes that depend on the data): {}",
                             error.what()));
  }
  // A record outlives the graph of autograd.
  outcome_.loss = outcome_.loss.detach();
  for (auto& [name, value] : outcome_.metrics) value = value.detach();
  graph_ = std::move(graph);
}

void RecordedStep::forget() {
  graph_.reset();
  inputs_.clear();
  outcome_ = LossResult{at::Tensor()};
  steps_before_ = 0;
}

}  // namespace lockstep::train
