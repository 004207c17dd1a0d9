#include "recipes/tensor_data.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <sstream>
#include <vector>

namespace lockstep::recipes {
namespace {

void check_pair(const char* one, const std::string& first, const char* other, const std::string& second) {
  if (first.empty() == second.empty()) return;
  throw ConfigError("train",
                    fmt::format("--{} needs --{}", first.empty() ? other : one, first.empty() ? one : other));
}

at::Tensor wide_integers(const at::Tensor& tensor) {
  const bool is_integer = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false);
  return is_integer ? tensor.to(at::kLong) : tensor;
}

at::Tensor as_wanted(const std::string& source, const at::Tensor& tensor, const WantedTensor& wanted) {
  if (!wanted.dtype || tensor.scalar_type() == *wanted.dtype) return tensor;
  // The trainer converts these to the dtype of the training.
  if (tensor.is_floating_point() && c10::isFloatingType(*wanted.dtype)) return tensor;
  const at::Tensor wide = wide_integers(tensor);
  at::Tensor result = wide.to(*wanted.dtype);
  if (at::equal(result.to(wide.scalar_type()), wide)) return result;
  throw ConfigError(
      "train",
      fmt::format("'{}' has dtype {} and values that do not fit into {}, the dtype of the "
                  "model's input '{}'",
                  source, c10::toString(tensor.scalar_type()), c10::toString(*wanted.dtype), wanted.name));
}

std::vector<std::string> sources_of(const std::string& inputs, const std::string& target) {
  std::vector<std::string> sources;
  std::istringstream list(inputs);
  for (std::string source; std::getline(list, source, ',');) sources.push_back(source);
  sources.push_back(target);
  return sources;
}

void check_samples(const std::string& source, const at::Tensor& tensor, const std::string& first,
                   const at::Tensor& first_tensor) {
  if (tensor.dim() == 0) {
    throw ConfigError("train", fmt::format("'{}' is a single number, not one row for each sample", source));
  }
  if (tensor.size(0) == first_tensor.size(0)) return;
  throw ConfigError("train", fmt::format("'{}' has {} samples, and '{}' has {}", first, first_tensor.size(0),
                                         source, tensor.size(0)));
}

}  // namespace

void TensorDataOptions::add_to(ProgramOptions& table, bool without_validation) {
  table
      .add("inputs", inputs,
           "inputs from a file instead of --data: .npy, .npz, .safetensors or .pt; FILE:NAME for one of "
           "several tensors")
      .add("targets", targets, "the targets of --inputs");
  if (without_validation) return;
  table.add("val_inputs", val_inputs, "inputs for validation, as --inputs")
      .add("val_targets", val_targets, "the targets of --val_inputs");
}

bool TensorDataOptions::given() const {
  check_pair("inputs", inputs, "targets", targets);
  check_pair("val_inputs", val_inputs, "val_targets", val_targets);
  if (inputs.empty() && has_validation()) throw ConfigError("train", "--val_inputs needs --inputs");
  return !inputs.empty();
}

size_t TensorDataOptions::count() const { return sources_of(inputs, targets).size(); }

TensorDataset tensor_dataset(const TensorDataOptions& options, Split split,
                             const std::vector<WantedTensor>& wanted) {
  const bool is_train = split == Split::kTrain;
  const std::vector<std::string> sources = is_train ? sources_of(options.inputs, options.targets)
                                                    : sources_of(options.val_inputs, options.val_targets);
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < sources.size(); ++i) {
    const bool is_target = i + 1 == sources.size();
    const at::Tensor tensor = is_target ? read_tensor(sources[i], {"targets", "labels", "y"})
                                        : read_tensor(sources[i], {"inputs", "images", "x", "data"});
    tensors.push_back(i < wanted.size() ? as_wanted(sources[i], tensor, wanted[i]) : wide_integers(tensor));
  }
  for (size_t i = 0; i < tensors.size(); ++i) check_samples(sources[i], tensors[i], sources[0], tensors[0]);
  return TensorDataset(std::move(tensors));
}

}  // namespace lockstep::recipes
