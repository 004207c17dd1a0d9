#pragma once

// Wraps any LibTorch model for the trainer and for losses: a module with parameters, and a function
// that calls it on one tensor. Sequential, module holders (TORCH_MODULE) and shared pointers to a
// module with forward(tensor) convert to it.
//
// Example:
//
//   const lockstep::Model model = net;
//   const torch::Tensor prediction = model(x);
//   std::printf("%zu parameters\n", model.module()->parameters().size());
//
// More: docs/trainer.md

#include <functional>
#include <memory>
#include <utility>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace lockstep {

// A model that shares ownership of its module. Copies refer to the same module. Thread-safe as far as
// the module's forward is.
class Model {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  // A module that is called by `forward`, for modules whose forward() takes other arguments.
  Model(std::shared_ptr<torch::nn::Module> module, Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}

  template <typename M>
  Model(M model)  // NOLINT: implicit, so that Trainer takes a model as it is
      : module_(to_module(model)),
        forward_([model](const at::Tensor& input) mutable { return model->forward(input); }) {}

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  // Runs the module's forward.
  at::Tensor operator()(const at::Tensor& input) const;

 private:
  template <typename M>
  static auto to_module(const M& model) {
    if constexpr (requires { model.ptr(); }) {
      return model.ptr();
    } else {
      return model;
    }
  }

  std::shared_ptr<torch::nn::Module> module_;
  Forward forward_;
};

// Python's nn.init.trunc_normal_, which LibTorch lacks, with mean 0 and bounds of -2 and 2: fills the
// tensor with the bits that PyTorch of LibTorch's version draws after the same seed.
// `standard_deviation` is 1 at most.
void truncated_normal(const at::Tensor& tensor, double standard_deviation);

}  // namespace lockstep
