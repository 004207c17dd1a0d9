// Steps a second of training with divided states on one fixed batch. Prints one JSON line
// from rank 0.
//
//   LOCKSTEP_NPROCS=2 build/bin/bench/zero_steps zero_mlp STAGE STEPS

#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;

void run(const lockstep::World& world, const std::string& name, int stage, int steps) {
  lockstep::bench::Workload workload = lockstep::bench::make_workload(name);
  const std::shared_ptr<torch::nn::Module> module = workload.model.module();
  const auto optimizer = lockstep::make_cpu_adam(module->parameters(), {.lr = 1e-3});
  lockstep::ShardedModel model(module, *optimizer, world.communicator(), {.stage = stage});
  const auto step = [&] {
    model.zero_grad();
    model.prepare_forward();
    workload.loss().backward();
    model.step();
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

}  // namespace

int main(int argc, char** argv) {
  const char* program[] = {argv[0]};
  return lockstep::launch(1, program, {}, [&](lockstep::World& world, const lockstep::TrainConfig&) {
    if (argc != 4) throw lockstep::ConfigError("bench", "usage: zero_steps zero_mlp|vit_small STAGE STEPS");
    run(world, argv[1], std::atoi(argv[2]), std::atoi(argv[3]));
  });
}
