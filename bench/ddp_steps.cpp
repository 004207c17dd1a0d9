// Steps a second of data-parallel SGD on one fixed batch; or with "memory" how much memory
// its tensors take between steps beyond the model and one copy of its gradients. Prints one
// JSON line from rank 0.
//
//   LOCKSTEP_NPROCS=2 build/bin/bench/ddp_steps sine 2000
//   LOCKSTEP_NPROCS=2 LOCKSTEP_BACKEND=gloo build/bin/bench/ddp_steps cnn memory

#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "models.h"
#include "train/measured_memory.h"

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
  if (!world.is_main()) return;
  std::printf("{\"value\": %.6g, \"unit\": \"steps/s\", \"backend\": \"%s\"}\n", steps / seconds,
              world.communicator().backend().c_str());
}

// Over a backend whose buckets are ordinary memory: shared memory would not be counted.
void measure_memory(const lockstep::World& world, const std::string& name) {
  const lockstep::train::CountedMemory memory;
  lockstep::bench::Workload workload = lockstep::bench::make_workload(name);
  const std::shared_ptr<torch::nn::Module> module = workload.model.module();
  const int64_t before = memory.live_bytes();
  torch::optim::SGD optimizer(module->parameters(), 0.01);
  lockstep::GradientSync gradients(module, world.communicator());
  for (int i = 0; i < 3; ++i) {
    gradients.zero_grad();
    gradients.prepare_forward();
    workload.loss().backward();
    optimizer.step();
  }
  int64_t copy = 0;
  for (const torch::Tensor& parameter : module->parameters())
    copy += static_cast<int64_t>(parameter.nbytes());
  if (!world.is_main()) return;
  std::printf("{\"value\": %lld, \"unit\": \"bytes\", \"one_copy\": %lld, \"backend\": \"%s\"}\n",
              static_cast<long long>(memory.live_bytes() - before - copy), static_cast<long long>(copy),
              world.communicator().backend().c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {}, [&](lockstep::World& world, const lockstep::TrainConfig&) {
    if (argc != 3) throw lockstep::ConfigError("bench", "usage: ddp_steps sine|mlp|cnn STEPS|memory");
    if (argv[2] == std::string("memory")) return measure_memory(world, argv[1]);
    run(world, argv[1], std::atoi(argv[2]));
  });
}
