#include "support/parity_training.h"

#include <lockstep/data_parallel.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <cstdlib>
#include <functional>

#include "support/formula.h"
#include "support/golden.h"
#include "support/group_case.h"

namespace lockstep::test {

namespace {

namespace F = torch::nn::functional;

constexpr int64_t kSteps = 50;
constexpr int64_t kBatch = 16;

struct ParityModel : torch::nn::Module {
  virtual at::Tensor batch(int64_t salt) const = 0;
  virtual at::Tensor forward(at::Tensor x) = 0;
  virtual at::Tensor loss(const at::Tensor& output, int64_t salt) const = 0;
};

struct Mlp : ParityModel {
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(1, 16));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(16, 1));

  at::Tensor batch(int64_t salt) const override { return formula({kBatch, 1}, salt); }
  at::Tensor forward(at::Tensor x) override { return fc2(torch::relu(fc1(x))); }
  at::Tensor loss(const at::Tensor& output, int64_t salt) const override {
    const auto x = batch(salt);
    return torch::mse_loss(output, x * x * 4 - x);
  }
};

struct Cnn : ParityModel {
  torch::nn::Conv2d conv1 =
      register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
  torch::nn::BatchNorm2d bn = register_module("bn", torch::nn::BatchNorm2d(4));
  torch::nn::Conv2d conv2 = register_module("conv2", torch::nn::Conv2d(4, 8, 3));
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(8 * 2 * 2, 10));

  at::Tensor batch(int64_t salt) const override { return formula({kBatch, 1, 12, 12}, salt); }
  at::Tensor forward(at::Tensor x) override {
    x = torch::max_pool2d(torch::relu(bn(conv1(x))), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 3, 1);
    return fc(x.flatten(1));
  }
  at::Tensor loss(const at::Tensor& output, int64_t salt) const override {
    const auto labels = (torch::arange(kBatch, torch::kLong) * 7 + salt).remainder(10);
    return torch::cross_entropy_loss(output, labels);
  }
};

// torch.optim.Adam(fused=True): the kernel itself.
class FusedAdam {
 public:
  explicit FusedAdam(std::vector<at::Tensor> parameters) : parameters_(std::move(parameters)) {
    for (const auto& parameter : parameters_) {
      first_.push_back(torch::zeros_like(parameter));
      second_.push_back(torch::zeros_like(parameter));
      steps_.push_back(torch::zeros({}));
    }
  }

  void step() {
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      gradients.push_back(parameters_[i].grad());
      steps_[i] += 1;
    }
    at::_fused_adam_(parameters_, gradients, first_, second_, /*max_exp_avg_sqs=*/{}, steps_, /*lr=*/0.01,
                     /*beta1=*/0.9, /*beta2=*/0.999, /*weight_decay=*/0, /*eps=*/1e-8, /*amsgrad=*/false,
                     /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> parameters_, first_, second_, steps_;
};

std::function<void()> make_optimizer_step(const std::string& name,
                                          const std::vector<at::Tensor>& parameters) {
  if (name.ends_with("_sgd")) {
    auto sgd = std::make_shared<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    return [sgd] { sgd->step(); };
  }
  if (name.ends_with("_fused_adam")) {
    return [adam = std::make_shared<FusedAdam>(parameters)] { adam->step(); };
  }
  const std::shared_ptr<torch::optim::Optimizer> adam = make_python_adam(parameters, {.lr = 0.01});
  return [adam] { adam->step(); };
}

std::string bytes_of(const torch::nn::Module& module) {
  std::string bytes;
  const auto append = [&](const at::Tensor& tensor) {
    const auto values = tensor.detach().contiguous();
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  };
  for (const auto& parameter : module.parameters()) append(parameter);
  for (const auto& buffer : module.buffers()) {
    if (buffer.is_floating_point()) append(buffer);
  }
  return bytes;
}

}  // namespace

void use_portable_kernels() {
  for (const auto& [name, value] : portable_kernels()) setenv(name.c_str(), value->c_str(), 1);
}

const std::vector<std::string>& parity_cases() {
  static const std::vector<std::string> cases{"mlp_sgd", "mlp_adam", "mlp_fused_adam",
                                              "cnn_sgd", "cnn_adam", "cnn_fused_adam"};
  return cases;
}

const std::vector<std::string>& portable_parity_cases() {
  static const std::vector<std::string> cases{"mlp_sgd", "mlp_fused_adam", "cnn_sgd", "cnn_fused_adam"};
  return cases;
}

std::string train_parity_case(const std::string& name, const Communicator& communicator) {
  std::shared_ptr<ParityModel> module;
  if (name.starts_with("mlp")) {
    module = std::make_shared<Mlp>();
  } else {
    module = std::make_shared<Cnn>();
  }
  set_parameters(*module);
  DataParallel model(module, communicator);
  const auto optimizer_step = make_optimizer_step(name, module->parameters());
  for (int64_t step = 0; step < kSteps; ++step) {
    const int64_t salt = 1000 + step * communicator.size() + communicator.rank();
    model.zero_grad();
    module->loss(model.forward(module->batch(salt)), salt).backward();
    optimizer_step();
  }
  return bytes_of(*module);
}

std::string train_parity_case(const std::string& name) {
  torch::set_num_threads(1);
  std::string result;
  run_group({"gloo", {0, 0}}, [&](Communicator& communicator) {
    torch::set_num_threads(1);
    auto bytes = train_parity_case(name, communicator);
    if (communicator.rank() == 0) result = std::move(bytes);
  });
  return result;
}

}  // namespace lockstep::test
