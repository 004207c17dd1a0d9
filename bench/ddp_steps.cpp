// Steps a second of data-parallel SGD on one fixed batch, and how much memory the
// gradients take. Prints one JSON line from rank 0.
//
//   LOCKSTEP_NPROCS=2 build/bin/bench/ddp_steps sine 2000

#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;

void run(const lockstep::World& world, const std::string& name, int steps) {
  lockstep::bench::Workload workload = lockstep::bench::make_workload(name);
  const std::shared_ptr<torch::nn::Module> module = workload.model.module();
  torch::optim::SGD optimizer(module->parameters(), 0.01);
  lockstep::GradientSync gradients(module, world.communicator());
  const auto step = [&] {
    gradients.zero_grad();
    gradients.prepare_forward();
    workload.loss().backward();
    optimizer.step();
  };
  for (int i = 0; i < steps / 10 + 1; ++i) step();
  world.communicator().barrier();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < steps; ++i) step();
  const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  int64_t parameter_bytes = 0;
  for (const torch::Tensor& parameter : module->parameters())
    parameter_bytes += static_cast<int64_t>(parameter.nbytes());
  if (world.is_main()) {
    std::printf(
        "{\"value\": %.6g, \"unit\": \"steps/s\", \"backend\": \"%s\", \"extra_gradient_bytes\": %lld}\n",
        steps / seconds, world.communicator().backend().c_str(),
        static_cast<long long>(gradients.gradient_bytes() - parameter_bytes));
  }
}

}  // namespace

int main(int argc, char** argv) {
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {}, [&](lockstep::World& world, const lockstep::TrainConfig&) {
    if (argc != 3) throw lockstep::ConfigError("bench", "usage: ddp_steps sine|mlp|cnn STEPS");
    run(world, argv[1], std::atoi(argv[2]));
  });
}
