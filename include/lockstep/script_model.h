#pragma once

// Trains a TorchScript module that Python scripted or traced, and saves it for Python again. This
// header includes LibTorch's modules because ScriptModel is a module.
//
// Example:
//
//   lockstep::ScriptModel model("model.pt");  // Python: torch.jit.script(model).save("model.pt")
//   const torch::Tensor output = model->forward(torch::ones({4, 3}));
//   if (world.is_main()) model->save_script("trained.pt");  // Python: torch.jit.load("trained.pt")
//
// More: docs/interop.md

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>

namespace lockstep {

// A TorchScript module as a LibTorch module. Parameters and buffers are the script's own, with their
// names in Python: weights, gradients, train(), eval() and to() act on the script. A tensor with two
// names (tied weights) is registered under the first. One thread at a time.
//
// Security: loading a module executes code of the file (__setstate__), which can write files. Load only
// files that you trust. load_weights() reads the weights of the same file and executes nothing.
class ScriptModelImpl : public torch::nn::Module {
 public:
  // Loads the module into host memory, independent of the device it was saved from. ConfigError: the
  // file has no TorchScript module with a method forward.
  explicit ScriptModelImpl(const std::filesystem::path& file);

  // Runs the script's forward. ConfigError: it does not return one tensor.
  at::Tensor forward(const at::Tensor& input);

  void train(bool on = true) override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  // Writes code and weights for Python's torch.jit.load; the tensors are saved as tensors in host
  // memory. The file appears complete or not at all. ConfigError: it cannot be written.
  void save_script(const std::filesystem::path& file) const;

 private:
  struct Script;
  explicit ScriptModelImpl(std::shared_ptr<Script> script);

  std::shared_ptr<Script> script_;
};

TORCH_MODULE(ScriptModel);

}  // namespace lockstep
