#pragma once

// Wraps any LibTorch model for the trainer and for losses: a module with parameters, and a function
// that calls it. Sequential, module holders (TORCH_MODULE) and shared pointers to a module convert to
// it, if its forward() takes one to four tensors and returns a tensor or ModelOutputs.
//
// Example:
//
//   const lockstep::Model model = net;
//   const torch::Tensor prediction = model(x);
//   std::printf("%zu parameters\n", model.module()->parameters().size());
//
// More: docs/trainer.md

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace lockstep {

// The outputs of a model by name, in the order of the model. A tensor converts to one output without a
// name.
struct ModelOutputs {
  ModelOutputs() = default;
  ModelOutputs(at::Tensor tensor) { tensors.emplace_back("", std::move(tensor)); }  // NOLINT: implicit
  ModelOutputs(std::vector<std::pair<std::string, at::Tensor>> named)               // NOLINT: implicit
      : tensors(std::move(named)) {}

  // ConfigError: there is no output of this name; it lists the names.
  const at::Tensor& operator[](std::string_view name) const;
  // The only output, or the first. ConfigError: there is none.
  const at::Tensor& first() const;

  std::vector<std::pair<std::string, at::Tensor>> tensors;
};

// A model that shares ownership of its module. Copies refer to the same module. Thread-safe as far as
// the module's forward is.
class Model {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;
  using NamedForward = std::function<ModelOutputs(const std::vector<at::Tensor>& inputs)>;

  // A module that is called by `forward`, for modules whose forward() takes other arguments.
  Model(std::shared_ptr<torch::nn::Module> module, Forward forward)
      : module_(std::move(module)), num_inputs_(1), forward_(of_one(std::move(forward))) {}
  // The same for several inputs, or outputs with names. The losses of trainer.h give it the first
  // `num_inputs` tensors of a batch; the next one is the target.
  Model(std::shared_ptr<torch::nn::Module> module, NamedForward forward, int64_t num_inputs)
      : module_(std::move(module)), num_inputs_(num_inputs), forward_(std::move(forward)) {}

  template <typename M>
  Model(M model)  // NOLINT: implicit, so that Trainer takes a model as it is
      : module_(to_module(model)), num_inputs_(inputs_of<M>()), forward_(to_forward(std::move(model))) {}

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  int64_t num_inputs() const { return num_inputs_; }
  // Runs the module's forward on its only input, and returns its first output.
  at::Tensor operator()(const at::Tensor& input) const;
  // Runs it on all inputs. ConfigError: another number of inputs.
  ModelOutputs call(const std::vector<at::Tensor>& inputs) const;

 private:
  static NamedForward of_one(Forward forward) {
    return [forward = std::move(forward)](const std::vector<at::Tensor>& inputs) {
      return ModelOutputs(forward(inputs[0]));
    };
  }

  // How many tensors forward() takes.
  template <typename M>
  static constexpr int64_t inputs_of() {
    if constexpr (requires(M m, at::Tensor t) { m->forward(t); }) {
      return 1;
    } else if constexpr (requires(M m, at::Tensor t) { m->forward(t, t); }) {
      return 2;
    } else if constexpr (requires(M m, at::Tensor t) { m->forward(t, t, t); }) {
      return 3;
    } else {
      static_assert(
          requires(M m, at::Tensor t) { m->forward(t, t, t, t); },
          "forward() must take one to four tensors; for other modules give Model a function");
      return 4;
    }
  }

  template <typename M>
  static NamedForward to_forward(M model) {
    return [model = std::move(model)](const std::vector<at::Tensor>& t) mutable -> ModelOutputs {
      constexpr int64_t kInputs = inputs_of<M>();
      if constexpr (kInputs == 1) {
        return model->forward(t[0]);
      } else if constexpr (kInputs == 2) {
        return model->forward(t[0], t[1]);
      } else if constexpr (kInputs == 3) {
        return model->forward(t[0], t[1], t[2]);
      } else {
        return model->forward(t[0], t[1], t[2], t[3]);
      }
    };
  }

  template <typename M>
  static auto to_module(const M& model) {
    if constexpr (requires { model.ptr(); }) {
      return model.ptr();
    } else {
      return model;
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
  int64_t num_inputs_;
  NamedForward forward_;
};

// Python's nn.init.trunc_normal_, which LibTorch lacks, with mean 0 and bounds of -2 and 2: fills the
// tensor with the bits that PyTorch of LibTorch's version draws after the same seed.
// `standard_deviation` is 1 at most.
void truncated_normal(const at::Tensor& tensor, double standard_deviation);

}  // namespace lockstep
