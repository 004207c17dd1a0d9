#pragma once

// Unlike most headers this one includes LibTorch's modules: ScriptModel is one.

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <filesystem>
#include <iosfwd>
#include <memory>
#include <optional>

namespace lockstep {

// A TorchScript module, scripted or traced in Python, as a module that trains here:
//
//   Python:  torch.jit.script(model).save("model.pt")
//   C++:     lockstep::ScriptModel model("model.pt");
//            torch::optim::SGD optimizer(model->parameters(), 0.01);
//            lockstep::Trainer trainer(world, model, optimizer, config, lockstep::mse);
//            trainer.fit(loader);
//            model->save_script("trained.pt");  // torch.jit.load() in Python
//
// Its parameters and buffers are the script's own, under their names in Python, so
// weights, gradients, train(), eval() and to() of the module are those of the script. A
// tensor under two names (tied weights) is registered under the first. One thread at a
// time.
//
// Loading a module executes code of the file (__setstate__), which may write files: load
// none that you do not trust. load_weights() reads the weights of the same file and
// executes nothing.
class ScriptModelImpl : public torch::nn::Module {
 public:
  // Into host memory, whatever device it was saved from. ConfigError: the file holds no
  // TorchScript module with a method forward.
  explicit ScriptModelImpl(const std::filesystem::path& file);

  // The script's forward. ConfigError: it does not return one tensor.
  at::Tensor forward(const at::Tensor& input);

  void train(bool on = true) override;
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

  // Code and weights, as Python's torch.jit.load reads them; in host memory. The file
  // appears whole or not at all. ConfigError: it cannot be written.
  void save_script(const std::filesystem::path& file) const;

 private:
  struct Script;
  explicit ScriptModelImpl(std::shared_ptr<Script> script);

  std::shared_ptr<Script> script_;
};

TORCH_MODULE(ScriptModel);

}  // namespace lockstep
