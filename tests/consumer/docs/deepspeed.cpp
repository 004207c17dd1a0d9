// Inside the function of a rank whose folder holds a ds_config.json. The page reads that file in its first
// block, and goes on with it in the next one.
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>
#include <fstream>

void run(lockstep::World& world, const lockstep::TrainConfig&) {
  if (world.is_main()) {
    std::ofstream("ds_config.json")
        << R"({"train_micro_batch_size_per_gpu": 16, "gradient_accumulation_steps": 1,
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {"stage": 2}})";
  }
  world.communicator().barrier();
  const auto config = lockstep::DeepSpeedConfig::from_file("ds_config.json");
  const int world_size = world.size();
  torch::nn::Sequential net(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
  const torch::Tensor x = torch::linspace(0, 1, 96).reshape({-1, 1});
  lockstep::Loader loader(lockstep::TensorDataset{x, torch::sin(2 * M_PI * x)}, {.batch_size = 16});
  {
#include DOCS_BLOCK
  }
}
