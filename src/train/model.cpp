#include <ATen/ScalarOps.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/data.h>
#include <lockstep/error.h>
#include <lockstep/exported_model.h>
#include <lockstep/model.h>
#include <lockstep/trainer.h>
#include <torch/torch.h>

#include "exported/exported_model_impl.h"
#include "torch_private/truncated_normal.h"

namespace lockstep {

const at::Tensor& ModelOutputs::operator[](std::string_view name) const {
  for (const auto& [key, tensor] : tensors) {
    if (key == name) return tensor;
  }
  std::vector<std::string_view> known;
  for (const auto& [key, tensor] : tensors) {
    known.push_back(key.empty() ? "one without a name" : std::string_view(key));
  }
  throw ConfigError("train", fmt::format("the model has no output '{}': it has {}", name,
                                         known.empty() ? "none" : fmt::format("{}", fmt::join(known, ", "))));
}

const at::Tensor& ModelOutputs::first() const {
  if (tensors.empty()) throw ConfigError("train", "the model returned no outputs");
  return tensors.front().second;
}

at::Tensor Model::operator()(const at::Tensor& input) const { return call({input}).first(); }

ModelOutputs Model::call(const std::vector<at::Tensor>& inputs) const {
  if (static_cast<int64_t>(inputs.size()) != num_inputs_) {
    throw ConfigError("train",
                      fmt::format("the model takes {} input(s), and was called with {}: several inputs are "
                                  "given with call()",
                                  num_inputs_, inputs.size()));
  }
  return forward_(inputs);
}

void truncated_normal(const at::Tensor& tensor, double standard_deviation) {
  torch_private::truncated_normal(tensor, standard_deviation);
}

std::vector<at::Tensor> inputs_of(const Batch& batch, const Model& model) {
  const auto count = static_cast<size_t>(model.num_inputs());
  if (batch.tensors.size() < count) {
    throw ConfigError("train", fmt::format("the model has {} inputs, and batches have {} tensors", count,
                                           batch.tensors.size()));
  }
  return {batch.tensors.begin(), batch.tensors.begin() + static_cast<std::ptrdiff_t>(count)};
}

namespace {

// The model's first output for the inputs of a batch.
at::Tensor output_of(const Batch& batch, const Model& model) {
  if (model.num_inputs() == 1) return model(batch.data());
  return model.call(inputs_of(batch, model)).first();
}

// The tensor after the inputs.
const at::Tensor& target_of(const Batch& batch, const Model& model) {
  if (model.num_inputs() == 1) return batch.target();
  const auto inputs = static_cast<size_t>(model.num_inputs());
  if (batch.tensors.size() > inputs) return batch.tensors[inputs];
  throw ConfigError("train",
                    fmt::format("the data give no target: the model has {} inputs, and batches have {} "
                                "tensors",
                                inputs, batch.tensors.size()));
}

// Targets may be probabilities, such as those of MixUp: then the most probable class counts.
at::Tensor accuracy(const at::Tensor& scores, const at::Tensor& target) {
  const bool has_classes = target.dim() == scores.dim() && target.is_floating_point();
  return scores.detach().argmax(1).eq(has_classes ? target.argmax(1) : target).to(torch::kFloat32).mean();
}

}  // namespace

at::Tensor mse(const Batch& batch, const Model& model) {
  return torch::mse_loss(output_of(batch, model), target_of(batch, model));
}

at::Tensor cross_entropy(const Batch& batch, const Model& model) {
  return torch::cross_entropy_loss(output_of(batch, model), target_of(batch, model));
}

at::Tensor nll(const Batch& batch, const Model& model) {
  return torch::nll_loss(output_of(batch, model), target_of(batch, model));
}

LossResult cross_entropy_with_accuracy(const Batch& batch, const Model& model) {
  const at::Tensor scores = output_of(batch, model);
  return {torch::cross_entropy_loss(scores, target_of(batch, model)),
          {{"accuracy", accuracy(scores, target_of(batch, model))}}};
}

LossResult nll_with_accuracy(const Batch& batch, const Model& model) {
  const at::Tensor scores = output_of(batch, model);
  return {torch::nll_loss(scores, target_of(batch, model)),
          {{"accuracy", accuracy(scores, target_of(batch, model))}}};
}

Loss loss_named(const std::string& name) {
  if (name == "mse") return mse;
  if (name == "cross_entropy") return cross_entropy;
  if (name == "nll") return nll;
  throw ConfigError(
      "train", fmt::format("unknown loss '{}': mse, cross_entropy and nll have names; any other one is a "
                           "function of a batch and a model",
                           name));
}

Model ExportedModelImpl::as_model() {
  const auto self = std::static_pointer_cast<ExportedModelImpl>(shared_from_this());
  const auto call = [self](const std::vector<at::Tensor>& inputs) {
    Impl::Values values = self->impl_->take_values();
    values.inputs.assign(inputs.begin(), inputs.end());
    self->impl_->run(values.inputs, self->is_training(), values.outputs);
    ModelOutputs named;
    named.tensors.reserve(values.outputs.size());
    const std::vector<std::string>& names = self->output_names();
    for (size_t i = 0; i < values.outputs.size(); ++i) {
      c10::IValue& output = values.outputs[i];
      if (output.isScalar()) {
        named.tensors.emplace_back(names[i], c10::scalar_to_tensor(output.toScalar()));
      } else if (output.isTensor()) {
        named.tensors.emplace_back(names[i], std::move(output).toTensor());
      }
    }
    self->impl_->give_back(std::move(values));
    return named;
  };
  return {self, call, static_cast<int64_t>(input_names().size())};
}

}  // namespace lockstep
