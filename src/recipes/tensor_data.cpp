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

TensorDataset tensor_dataset(const TensorDataOptions& options, Split split) {
  const bool is_train = split == Split::kTrain;
  std::vector<std::string> sources;
  std::istringstream list(is_train ? options.inputs : options.val_inputs);
  for (std::string source; std::getline(list, source, ',');) sources.push_back(source);
  std::vector<at::Tensor> tensors;
  for (const std::string& source : sources) {
    tensors.push_back(wide_integers(read_tensor(source, {"inputs", "images", "x", "data"})));
  }
  sources.push_back(is_train ? options.targets : options.val_targets);
  tensors.push_back(wide_integers(read_tensor(sources.back(), {"targets", "labels", "y"})));
  for (size_t i = 0; i < tensors.size(); ++i) check_samples(sources[i], tensors[i], sources[0], tensors[0]);
  return TensorDataset(std::move(tensors));
}

}  // namespace lockstep::recipes
