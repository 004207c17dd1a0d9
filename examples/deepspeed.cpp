// Fits sin(2 pi x) by a DeepSpeed configuration file. Takes what DeepSpeed's programs take.
//
//   build/bin/deepspeed --deepspeed --deepspeed_config examples/ds_config.json --nprocs 2
//   build/bin/lockstep run -n 2 build/bin/deepspeed --deepspeed --deepspeed_config examples/ds_config.json
//
// prints two lines every hundred steps from rank 0, and at the end what it came to:
//
//   [rank 0 node01] [engine] step=100, skipped=0, lr=[0.01], norm=1.15388
//   [rank 0 node01] [engine] global_step=100, RunningAvgSamplesPerSec=1057.57, CurrSamplesPerSec=1057.57
//   ...
//   Loss: 0.1971 after 400 steps of 32 samples on 2 ranks

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  lockstep::DeepSpeedArguments arguments{.deepspeed_config = "ds_config.json"};
  lockstep::ProgramOptions own;
  lockstep::add_config_arguments(own, arguments);
  return lockstep::launch(argc, argv, {}, own, [&](lockstep::World& world, const lockstep::TrainConfig&) {
    torch::manual_seed(0);
    torch::nn::Sequential net(torch::nn::Linear(1, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
    auto engine = lockstep::initialize(net, arguments.config(world), world);

    const auto x = torch::linspace(0, 1, 1024).reshape({-1, 1});
    const auto y = torch::sin(2 * M_PI * x);
    auto loader = engine.loader(lockstep::TensorDataset({x, y}), {.shuffle = true, .drop_last = true});
    torch::Tensor loss;
    for (lockstep::Batch& part : loader.stream()) {
      engine.optimizer().zero_grad();  // as on LUMI's page; step() does it too
      const auto output = engine.forward(part.data().to(engine.device()));
      loss = torch::mse_loss(output, part.target().to(engine.device()));
      engine.backward(loss);
      engine.step();
      if (engine.global_steps() == 400) break;
    }
    const double value = loss.item<double>();
    if (!world.is_main()) return;
    std::printf("Loss: %.4f after %d steps of %d samples on %d ranks\n", value,
                static_cast<int>(engine.global_steps()), static_cast<int>(engine.batch().train_batch_size),
                world.size());
  });
}
