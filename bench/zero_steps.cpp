// Steps a second of the engine of a DeepSpeed configuration, the peer's, on one fixed batch.
// Prints one JSON line from rank 0.
//
//   LOCKSTEP_NPROCS=2 build/bin/bench/zero_steps zero_mlp STAGE STEPS

#include <fmt/format.h>
#include <lockstep/lockstep.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "models.h"

namespace {

using Clock = std::chrono::steady_clock;

// The engine calls the forward of a module.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(lockstep::Model wrapped) : model(std::move(wrapped)) {
    register_module("model", model.module());
  }
  torch::Tensor forward(const torch::Tensor& x) { return model(x); }
  lockstep::Model model;
};

void run(const lockstep::World& world, const std::string& name, int stage, int steps) {
  lockstep::bench::Workload workload = lockstep::bench::make_workload(name);
  const auto config = lockstep::DeepSpeedConfig::from_text(
      fmt::format(R"({{"train_micro_batch_size_per_gpu": {}, "gradient_clipping": 0.0,
          "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-3, "torch_adam": true}}}},
          "zero_optimization": {{"stage": {}}}}})",
                  workload.input.size(0), stage),
      "bench");
  auto engine = lockstep::initialize(std::make_shared<NetImpl>(workload.model), config, world);
  const auto step = [&] {
    engine.backward(workload.loss_of(engine.forward(workload.input)));
    engine.step();
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
