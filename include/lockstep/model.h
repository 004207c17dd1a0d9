#pragma once

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

// Any LibTorch model, as the trainer sees it: a module with parameters and a way to
// call it on one tensor. Made from whatever has a forward: a Sequential, a module
// holder (TORCH_MODULE), a shared_ptr to a module. Shares ownership.
class Model {
 public:
  using Forward = std::function<at::Tensor(const at::Tensor&)>;

  Model(std::shared_ptr<torch::nn::Module> module, Forward forward)
      : module_(std::move(module)), forward_(std::move(forward)) {}

  template <typename M>
  Model(M model)  // NOLINT: implicit, so that Trainer takes a model as it is
      : module_(to_module(model)),
        forward_([model](const at::Tensor& input) mutable { return model->forward(input); }) {}

  const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
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
