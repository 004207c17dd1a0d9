#pragma once

// Weights in files that Python reads and writes.
//
//   lockstep::save_weights(*model, "model.safetensors");
//   lockstep::load_weights(*model, "model.pt");

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// Tensors under names, in a fixed order: the parameters of a model in the order of
// their registration, or a state on its way to and from a checkpoint.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The module's own tensors, not copies, each once: one that is registered under several
// names has the first of them.
NamedTensors named_parameters(const torch::nn::Module& module);
NamedTensors named_buffers(const torch::nn::Module& module);

struct LoadWeightsOptions {
  // False: names that only the file or only the model has are left as they are, and
  // another dtype is converted. A shape must fit in any case.
  bool strict = true;
  // The file's name of a tensor to the model's; empty: they are the same.
  std::function<std::string(std::string)> rename = nullptr;
};

// What a load with strict = false passed over.
struct LoadedWeights {
  std::vector<std::string> missing;     // the model's, not in the file
  std::vector<std::string> unexpected;  // the file's, not in the model
  std::vector<std::string> converted;   // of another dtype in the file
};

// Copies the parameters and buffers of a file into a module, wherever its tensors are.
// The file is what Python's torch.save wrote for a state dict, a safetensors file, a
// TorchScript module or a checkpoint of Lockstep, told apart by what is in it. The
// prefixes "module." of DistributedDataParallel and "_orig_mod." of torch.compile are
// taken away where all names of one side have them.
//
// ConfigError lists what differs, by name, and nothing was copied. Blocks while it
// reads; the module must not be in use.
LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                           const LoadWeightsOptions& options = {});

// Writes parameters and buffers to a file that Python opens: "*.safetensors" by
// safetensors.torch.load_file, any other name by torch.load(file, weights_only=True).
// The file appears whole or not at all. ConfigError: it cannot be written.
void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);

}  // namespace lockstep
