#pragma once

// Saves and loads weights in files that Python reads and writes: state dicts of torch.save,
// safetensors, TorchScript modules. Checkpoints of a training, with optimizer and position, are the
// trainer's (docs/checkpoints.md).
//
// Example:
//
//   if (world.is_main()) lockstep::save_weights(*net, "net.safetensors");
//   world.communicator().barrier();
//   lockstep::load_weights(*net, "net.safetensors");
//
// More: docs/interop.md

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// Tensors with names, in a fixed order: the parameters of a model in the order of registration, or a
// state that a checkpoint saves and loads.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// The module's own tensors, not copies, each once: a tensor that is registered under several names has
// the first of them.
NamedTensors named_parameters(const torch::nn::Module& module);
NamedTensors named_buffers(const torch::nn::Module& module);

// A module with buffers that are not part of its state dict: Python's register_buffer(..., persistent=False).
// save_weights() leaves them out, and load_weights() does not expect them. A trainer's checkpoint has them.
class HasNonPersistentBuffers {
 public:
  virtual ~HasNonPersistentBuffers() = default;
  // Their names in this module: "layer.scale".
  virtual std::vector<std::string> non_persistent_buffers() const = 0;
};

struct LoadWeightsOptions {
  // true: names and dtypes of file and model must be equal. false: names that only the file or only the
  // model has are ignored, and dtypes are converted. Shapes must be equal in both cases.
  bool strict = true;
  // Maps a name of the file to a name of the model. Empty: the names are the same.
  std::function<std::string(std::string)> rename = nullptr;
};

// The differences that a load with strict = false accepted.
struct LoadedWeights {
  std::vector<std::string> missing;     // in the model, not in the file
  std::vector<std::string> unexpected;  // in the file, not in the model
  std::vector<std::string> converted;   // with another dtype in the file
};

// Copies the parameters and buffers of a file into a module, on any device. The file may be a state
// dict that Python's torch.save wrote, a safetensors file, a TorchScript module or a checkpoint of
// Lockstep; the content decides, not the name. The prefixes "module." of DistributedDataParallel and
// "_orig_mod." of torch.compile are removed if all names of one side have them.
//
// Blocks while it reads; not collective. The module must not be in use. ConfigError lists what differs,
// by name; nothing is copied then.
LoadedWeights load_weights(torch::nn::Module& module, const std::filesystem::path& file,
                           const LoadWeightsOptions& options = {});

// The tensors of such a file, in host memory, with the names that the file has; of a checkpoint or a run
// folder the weights of the model. ConfigError: the file cannot be read.
NamedTensors read_weights(const std::filesystem::path& file);

// Writes parameters and buffers to a file that Python opens: "*.safetensors" with
// safetensors.torch.load_file, any other name with torch.load(file, weights_only=True). The file
// appears complete or not at all. Not collective: call it on one rank. ConfigError: the file cannot be
// written.
void save_weights(const torch::nn::Module& module, const std::filesystem::path& file);
// The same for tensors.
void save_weights(const NamedTensors& tensors, const std::filesystem::path& file);

// The tensors of a file that Python wrote, in host memory: NumPy's .npy (one tensor with an empty name)
// and .npz, safetensors, or a dict of tensors that torch.save wrote. The content decides, not the name.
// Those of .npy and safetensors refer to the mapped file, which the ranks of a node share: do not write
// to them. ConfigError names the file and the reason.
NamedTensors read_tensors(const std::filesystem::path& file);

// One of them, as flags name it: FILE, or FILE:NAME. Without a name it is the only tensor of the file, or
// the first of `usual_names` that is in it. ConfigError lists the tensors of the file.
at::Tensor read_tensor(const std::string& source, std::initializer_list<std::string_view> usual_names = {});

}  // namespace lockstep
