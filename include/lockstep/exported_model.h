#pragma once

// Trains a model that Python exported with torch.export: its operators run one by one with autograd, so
// losses and gradients are those of the same model in Python. This header includes LibTorch's modules
// because ExportedModel is a module.
//
// Example:
//
//   // Python: torch.export.save(torch.export.export(model, (x,)), "model.pt2")
//   lockstep::ExportedModel model("model.pt2");
//   torch::optim::SGD sgd(model->parameters(), 0.01);
//   torch::mse_loss(model->forward(torch::ones({4, 3})), torch::zeros({4, 2})).backward();
//   sgd.step();
//
// A model with several inputs or outputs trains as model->as_model().
//
// More: docs/exported.md

#include <c10/core/ScalarType.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Model;

// The model of a .pt2 file as a LibTorch module. Parameters and buffers have Python's names and order. A
// tensor with two names (tied weights) is registered under the first. One thread at a time.
//
// train() restores the exported training flags; eval() switches batch norm and dropout off. The flag of
// the model decides, not those of its submodules.
//
// Loading executes nothing of the file. The model calls operators of LibTorch alone; operators that read
// files or change the process are refused.
class ExportedModelImpl : public torch::nn::Module,
                          public HasNonPersistentBuffers,
                          public parallel::UnitSource {
 public:
  // Loads the model into host memory. ConfigError: the file is not a valid exported program, or an
  // operator is not supported; the error names it and its line of Python.
  explicit ExportedModelImpl(const std::filesystem::path& file);
  ~ExportedModelImpl() override;

  // Runs a model with one input and one output. ConfigError: it has more; or the input has another
  // shape or dtype than the model was exported for.
  at::Tensor forward(const at::Tensor& input);

  // The inputs in the order of Python's forward, keyword arguments last. Elements of tuples and members
  // of dicts are inputs of their own: "x", "state.0", "options.scale". An input of which the export made a
  // constant, such as a boolean, is not among them.
  const std::vector<std::string>& input_names() const;
  // The outputs: "" for a single tensor, "0" and "1" of a tuple, "loss" of a dict, "pair.0".
  const std::vector<std::string>& output_names() const;
  // The dtypes that the inputs were exported with, in their order; nullopt: a number.
  std::vector<std::optional<c10::ScalarType>> input_dtypes() const;

  // Runs the model with all inputs in this order; returns all outputs. Tensors and numbers.
  // ConfigError: as forward().
  std::vector<c10::IValue> run(const std::vector<c10::IValue>& inputs);
  // The same by name. It may have inputs that are constants, with the values of the export. ConfigError: a
  // name is missing or unknown, or a constant has another value.
  std::map<std::string, c10::IValue> run(const std::map<std::string, c10::IValue>& inputs);

  // The model as Trainer takes it (model.h): with all inputs, in their order, and outputs by name, of which
  // numbers are tensors without dimensions. It shares ownership of this module. A model with an input that is
  // a number cannot be called so.
  Model as_model();

  // The modules of Python that are units of ZeRO stage 3 (sharded.h): parameters that only one of them uses
  // are gathered before its operators run and freed after them, forward and backward. A path in which *
  // stands for any text without a dot, "layers.*"; several with commas; of modules inside of each other the
  // outer one. "auto", as after loading: the outermost modules whose class occurs several times, if there are
  // any.
  // "": none. Call it before a ShardedModel or a trainer has the model. ConfigError: a pattern matches no
  // module; the error lists the paths.
  void shard_by(const std::string& pattern);
  // The modules that compute their activations again in backward, as set_activation_checkpointing() does for
  // units. Running statistics and counters change once. "auto" and patterns as above; "", as after loading:
  // none. ConfigError: also a module that changes a value in place that it did not make.
  void recompute_by(const std::string& pattern);
  // The units of shard_by(), in the order in which they run.
  std::vector<parallel::UnitSource::Owned> units() override;

  // Inputs of the sizes that the program was exported with, of zeros. `batch`: the size of dimension 0 of
  // the first input, on which others may depend; nullopt: the exported one. ConfigError: the program has
  // another fixed size.
  std::vector<c10::IValue> example_inputs(std::optional<int64_t> batch = std::nullopt) const;

  // Writes Python's state dict, which load_state_dict() takes strictly: with both names of tied weights,
  // and in Python's order. "*.safetensors", or a file for torch.load. As save_weights() otherwise.
  void save_state_dict(const std::filesystem::path& file) const;

  // Writes a .pt2 file with the present weights and buffers, which torch.export.load opens: the file that the
  // model was loaded from, with other contents of the tensors. A reader sees all of the file or nothing.
  // ConfigError: the file that was loaded has changed or is gone; a tensor has another dtype than the
  // program is for; the new file cannot be written.
  void save_program(const std::filesystem::path& file) const;

  // Buffers that Python's state dict does not have. They are buffers of this module.
  std::vector<std::string> non_persistent_buffers() const override;

  // Every operator of the program and how often it occurs, by name.
  std::map<std::string, int64_t> operators() const;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 private:
  struct Impl;
  explicit ExportedModelImpl(std::unique_ptr<Impl> impl);
  void register_modules();
  void register_tensors();
  void cut(const std::string& shard, const std::string& recompute);

  std::unique_ptr<Impl> impl_;
};

// Holds an ExportedModelImpl as TORCH_MODULE does.
class ExportedModel : public torch::nn::ModuleHolder<ExportedModelImpl> {
 public:
  using torch::nn::ModuleHolder<ExportedModelImpl>::ModuleHolder;
  using Impl = ExportedModelImpl;

  // Loads a library whose TORCH_LIBRARY blocks register operators, and lets models that are loaded later use
  // exactly these. It runs the library's code and stays for the life of the process. Thread-safe.
  // ConfigError: the library does not load, or registers no operator.
  static void load_operators(const std::filesystem::path& library);
};

}  // namespace lockstep
