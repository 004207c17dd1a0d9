#include <fmt/format.h>
#include <lockstep/data_parallel.h>
#include <lockstep/loader.h>
#include <lockstep/preemption.h>
#include <lockstep/trainer.h>
#include <lockstep/world.h>
#include <torch/torch.h>

#include <chrono>
#include <cstdio>

#include "base/progress.h"
#include "train/dtype.h"
#include "train/epoch_loss.h"
#include "train/run_folder.h"

namespace lockstep {
namespace {

using Clock = std::chrono::steady_clock;

// perceptrain's line, so that what reads its output reads ours.
void print_line(int rank, c10::Device device, int64_t iteration, double loss) {
  fmt::print("P {:>2}|{:<7}| Iteration {:>7}| Train_Loss: {:.7f} -\n", rank, device.str(), iteration, loss);
  std::fflush(stdout);
}

Batch to_device(const Batch& batch, c10::Device device, c10::ScalarType dtype) {
  Batch moved = batch;
  for (at::Tensor& tensor : moved.tensors) {
    // Class indices and the like stay integers.
    tensor = tensor.is_floating_point() ? tensor.to(device, dtype, /*non_blocking=*/true)
                                        : tensor.to(device, /*non_blocking=*/true);
  }
  return moved;
}

Model place_model(Model model, c10::Device device, c10::ScalarType dtype) {
  model.module()->to(device);
  // Module::to(dtype) would convert index and mask buffers too.
  const torch::NoGradGuard no_grad;
  const auto convert = [dtype](at::Tensor tensor) {
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(dtype));
  };
  for (const at::Tensor& parameter : model.module()->parameters()) convert(parameter);
  for (const at::Tensor& buffer : model.module()->buffers()) convert(buffer);
  return model;
}

}  // namespace

struct Trainer::Impl {
  Impl(World& world_, Model model_, torch::optim::Optimizer& optimizer_, TrainConfig config_, Loss loss_)
      : world(world_),
        config(std::move(config_)),
        dtype(train::parse_dtype(config.dtype)),
        model(place_model(std::move(model_), world.device(), dtype)),
        optimizer(optimizer_),
        loss(std::move(loss_)),
        gradients(model.module(), world.communicator()) {}

  FitResult fit(const Loader& whole) {
    config.validate();
    train::RunFolder folder(world, config);
    Loader loader = whole.shard(world.rank(), world.size(), ShardKind::kTrain);
    const auto seed = static_cast<int64_t>(config.seed);
    loader.load_state({.seed = loader.options().seed + seed});
    // The weights are equal by now; dropout and the like differ from rank to rank.
    torch::manual_seed(config.seed + static_cast<uint64_t>(world.rank()));
    if (save) preemption.emplace(world);
    FitResult result;
    result.run_folder = folder.path().string();
    const Clock::time_point start = Clock::now();
    model.module()->train();
    for (int64_t epoch = 1; epoch <= config.max_iter; ++epoch) {
      train_epoch(loader, epoch, result);
      folder.write_metrics(epoch, result.steps, result.train_loss);
    }
    preemption.reset();
    if (config.verbose && world.is_main()) print_summary(result, Clock::now() - start);
    return result;
  }

 private:
  void train_epoch(Loader& loader, int64_t epoch, FitResult& result) {
    train::EpochLoss epoch_loss(world.device());
    for (const Batch& batch : loader.epoch(epoch - 1)) {
      const at::Tensor batch_loss = train_step(to_device(batch, world.device(), dtype));
      epoch_loss.add(batch_loss, batch.size());
      base::Progress::of_process().set_step(++result.steps);
      if (preemption && preemption->requested()) {
        save();
        preemption->leave();
      }
    }
    result.epochs = epoch;
    const bool prints = config.verbose && config.print_every > 0 && epoch % config.print_every == 0;
    const double own_loss = config.print_all_ranks ? epoch_loss.own_mean() : 0;
    result.train_loss = epoch_loss.mean_over(world.communicator());
    if (prints && (world.is_main() || config.print_all_ranks)) {
      print_line(world.rank(), world.device(), epoch, config.print_all_ranks ? own_loss : result.train_loss);
    }
  }

  at::Tensor train_step(const Batch& batch) {
    base::Progress& progress = base::Progress::of_process();
    progress.set_phase(base::Phase::kForward);
    gradients.zero_grad();
    gradients.prepare_forward();
    const at::Tensor batch_loss = loss(batch, model);
    progress.set_phase(base::Phase::kBackward);
    batch_loss.backward();
    progress.set_phase(base::Phase::kOptimizer);
    optimizer.step();
    progress.set_phase(base::Phase::kData);
    return batch_loss.detach();
  }

  void print_summary(const FitResult& result, Clock::duration elapsed) const {
    fmt::print("Trained {} epochs ({} steps) on {} rank{} in {:.2f} s: final loss {:.7f}\nRun folder: {}\n",
               result.epochs, result.steps, world.size(), world.size() == 1 ? "" : "s",
               std::chrono::duration<double>(elapsed).count(), result.train_loss, result.run_folder);
    std::fflush(stdout);
  }

 public:
  World& world;
  const TrainConfig config;
  const c10::ScalarType dtype;
  Model model;
  torch::optim::Optimizer& optimizer;
  std::function<void()> save;
  std::optional<Preemption> preemption;
  Loss loss;
  GradientSync gradients;
};

void Trainer::on_preemption(std::function<void()> save) { impl_->save = std::move(save); }

Trainer::Trainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig config, Loss loss)
    : impl_(std::make_unique<Impl>(world, std::move(model), optimizer, std::move(config), std::move(loss))) {}
Trainer::Trainer(Trainer&&) noexcept = default;
Trainer::~Trainer() = default;

FitResult Trainer::fit(const Loader& loader) { return impl_->fit(loader); }

}  // namespace lockstep
