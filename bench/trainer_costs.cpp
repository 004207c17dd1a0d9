// What the trainer costs beside the training itself. Prints one JSON line.
//
//   build/bin/bench/trainer_costs step FOLDER         CPU us a step beyond the bare loop, sine model
//   build/bin/bench/trainer_costs checkpoint FOLDER   % that a checkpoint of 1 GB adds to the 50 steps after
//   it

#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>

namespace {

using namespace lockstep;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Of this thread, which does all the work of a step on the CPU: what other processes do
// meanwhile does not count.
double cpu_s() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TrainConfig quiet(const std::string& folder, int64_t epochs) {
  TrainConfig config;
  config.max_iter = epochs;
  config.compute_setup = "cpu";
  config.log_folder = folder;
  config.resume = "never";
  config.tracking_tool = "none";
  config.verbose = false;
  return config;
}

torch::nn::Sequential sine_model() {
  torch::manual_seed(0);
  return torch::nn::Sequential(torch::nn::Linear(1, 16), torch::nn::ReLU(), torch::nn::Linear(16, 1));
}

// What a user would write without a trainer, over the same data.
double bare_loop_s(World& world, const Loader& whole, int64_t epochs) {
  torch::nn::Sequential model = sine_model();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  DataParallel ddp(model, world.communicator());
  Loader loader = whole.shard(0, 1, ShardKind::kTrain);
  const double start = cpu_s();
  double total = 0;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const Batch& batch : loader.epoch(epoch)) {
      ddp.zero_grad();
      const at::Tensor loss = torch::mse_loss(ddp.forward(batch.data()), batch.target());
      loss.backward();
      optimizer.step();
      total += *loss.const_data_ptr<float>();
    }
  }
  if (!(total > 0)) throw InternalError("bench", "the loop did nothing");
  return cpu_s() - start;
}

double trainer_s(World& world, const Loader& loader, int64_t epochs, const std::string& folder) {
  torch::nn::Sequential model = sine_model();
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  Trainer trainer(world, model, optimizer, quiet(folder, epochs));
  const double start = cpu_s();
  trainer.fit(loader);
  return cpu_s() - start;
}

double step_us(World& world, const std::string& folder) {
  const auto x = torch::linspace(0, 1, 16000).reshape({-1, 1});
  const Loader loader(TensorDataset({x, torch::sin(2 * M_PI * x)}), {.batch_size = 16, .shuffle = true});
  constexpr int64_t kEpochs = 5;
  constexpr double kSteps = kEpochs * 1000;
  std::vector<double> differences;
  for (int round = 0; round < 7; ++round) {
    const double bare = bare_loop_s(world, loader, kEpochs);
    differences.push_back((trainer_s(world, loader, kEpochs, folder) - bare) / kSteps * 1e6);
  }
  std::nth_element(differences.begin(), differences.begin() + 3, differences.end());
  return std::max(differences[3], 0.01);
}

// 15 layers of 4096 x 4096: 1 GB of weights, which plain SGD leaves as the whole state.
// Every other window of 50 steps begins with a checkpoint, and is compared with the steps on
// both sides of it, because the machine's own speed drifts. The first one does not count: it
// makes the memory that all later ones use. The median of the others.
double checkpoint_percent(World& world, const std::string& folder) {
  torch::nn::Sequential model;
  for (int i = 0; i < 15; ++i)
    model->push_back(torch::nn::Linear(torch::nn::LinearOptions(4096, 4096).bias(false)));
  torch::optim::SGD optimizer(model->parameters(), 1e-6);
  const auto x = torch::rand({16, 4096});
  constexpr int64_t kBefore = 10;  // until caches and clocks are steady
  constexpr int64_t kSteps = 50;
  constexpr int64_t kWindows = 9;
  std::vector<double> at_step;
  TrainConfig config = quiet(folder, 1);
  config.max_batches = kBefore + kWindows * kSteps + 1;
  config.checkpoint_every_steps = int64_t{1} << 40;  // only those that are asked for, and the last
  config.callbacks = {
      std::make_shared<Callback>(CallbackOptions{.on = Stage::kTrainBatchStart}, [&](Trainer& trainer) {
        at_step.push_back(now_s());
        // Saved after this step, with which the window begins.
        const int64_t step = trainer.result().step - (kBefore - 1);
        if (step >= 0 && step % (2 * kSteps) == kSteps) trainer.save_checkpoint();
      })};
  Trainer trainer(world, model, optimizer, config);
  trainer.fit(Loader(TensorDataset({x, x}), {.batch_size = 16, .endless = true}));
  const auto seconds = [&](int64_t window) {
    const int64_t first = kBefore - 1 + window * kSteps;
    return at_step[static_cast<size_t>(first + kSteps)] - at_step[static_cast<size_t>(first)];
  };
  std::vector<double> percents;
  for (int64_t window = 3; window < kWindows; window += 2) {
    const double without = (seconds(window - 1) + seconds(window + 1)) / 2;
    std::fprintf(stderr, "50 steps: %.3f s, with a checkpoint %.3f s\n", without, seconds(window));
    percents.push_back(100 * (seconds(window) / without - 1));
  }
  std::nth_element(percents.begin(), percents.begin() + 1, percents.end());
  return std::max(percents[1], 0.01);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc == 3 ? argv[1] : "";
  return launch({.nprocs = 1, .compute_setup = "cpu"}, [&](World& world) {
    double value = 0;
    if (what == "step") {
      value = step_us(world, argv[2]);
    } else if (what == "checkpoint") {
      value = checkpoint_percent(world, argv[2]);
    } else {
      throw ConfigError("bench", "usage: trainer_costs step|checkpoint FOLDER");
    }
    std::printf("{\"value\": %.6g, \"unit\": \"%s\"}\n", value, what == "step" ? "us" : "%");
  });
}
