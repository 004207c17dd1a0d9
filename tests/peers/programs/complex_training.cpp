// Trains a network with complex parameters on two ranks, as programs/complex_training.py does with PyTorch's
// DDP; test_complex.py compares what they print.
//
//   complex_training BACKEND
//
// Prints a line of JSON for each dtype and optimizer: the loss and the norm of the gradients of each step,
// and the weights at the end as pairs of numbers.

#include <lockstep/data_parallel.h>
#include <lockstep/json.h>
#include <lockstep/launch.h>
#include <lockstep/optim.h>
#include <torch/torch.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

namespace {

constexpr int kSteps = 10;
constexpr int64_t kSamples = 16;

at::Tensor random_complex(at::IntArrayRef shape, uint64_t seed, at::ScalarType dtype) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  const auto real = at::TensorOptions(at::kDouble);
  const at::Tensor first = torch::randn(shape, generator, real);
  return torch::complex(first, torch::randn(shape, generator, real)).to(dtype);
}

struct NetImpl : torch::nn::Module {
  explicit NetImpl(at::ScalarType dtype) {
    mix = register_parameter("mix", random_complex({3, 40}, 1, dtype) * 0.3);
    shift = register_parameter("shift", random_complex({40}, 2, dtype) * 0.3);
    read = register_parameter("read", torch::real(random_complex({40, 2}, 3, dtype)).contiguous() * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) {
    return torch::matmul((torch::matmul(x, mix) + shift).abs(), read);
  }
  at::Tensor mix;
  at::Tensor shift;
  at::Tensor read;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        const std::vector<at::Tensor>& parameters) {
  if (name == "adam") return lockstep::make_python_adam(parameters, {.lr = 0.01, .weight_decay = 0.01});
  if (name == "adadelta") return lockstep::make_adadelta(parameters, {.lr = 0.7, .weight_decay = 0.01});
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(0.01));
}

lockstep::Json train(at::ScalarType dtype, const std::string& name, lockstep::World& world) {
  const auto net = std::make_shared<NetImpl>(dtype);
  lockstep::GradientSync sync(net, world.communicator());
  const auto optimizer = make_optimizer(name, net->parameters());
  lockstep::Json losses = lockstep::Json::array();
  lockstep::Json norms = lockstep::Json::array();
  for (int step = 0; step < kSteps; ++step) {
    const auto seed = static_cast<uint64_t>(100 + 2 * step + world.rank());
    const at::Tensor x = random_complex({kSamples, 3}, seed, dtype);
    const at::Tensor y = torch::real(random_complex({kSamples, 2}, seed + 1000, dtype)).contiguous();
    sync.zero_grad();
    sync.prepare_forward();
    const at::Tensor loss = torch::mse_loss(net->forward(x), y);
    loss.backward();
    norms.push_back(sync.clip_grad_norm(1e9).item<double>());
    optimizer->step();
    losses.push_back(loss.item<double>());
  }
  std::vector<double> weights;
  for (const at::Tensor& parameter : net->parameters()) {
    const at::Tensor numbers = (parameter.is_complex() ? torch::view_as_real(parameter) : parameter)
                                   .detach()
                                   .to(at::kDouble)
                                   .flatten();
    weights.insert(weights.end(), numbers.const_data_ptr<double>(),
                   numbers.const_data_ptr<double>() + numbers.numel());
  }
  return {{"losses", losses}, {"norms", norms}, {"weights", weights}};
}

}  // namespace

int main(int /*argc*/, char** argv) {
  return lockstep::run_main([&] {
    lockstep::TrainConfig config;
    config.backend = argv[1];
    config.nprocs = 2;
    return lockstep::launch(config, [](lockstep::World& world) {
      torch::set_num_threads(1);
      for (const at::ScalarType dtype : {at::kComplexFloat, at::kComplexDouble}) {
        for (const char* const name : {"sgd", "adam", "adadelta"}) {
          const std::string line = train(dtype, name, world).dump();
          if (world.is_main()) std::printf("%s\n", line.c_str());
        }
      }
    });
  });
}
