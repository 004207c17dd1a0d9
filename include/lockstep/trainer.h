#pragma once

#include <ATen/core/Tensor.h>
#include <lockstep/loss.h>
#include <lockstep/model.h>
#include <lockstep/train_config.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

class Loader;
class World;

struct FitResult {
  int64_t epochs = 0;
  int64_t steps = 0;
  // Mean loss of the last epoch over all samples of all ranks.
  double train_loss = 0;
  // Where configuration and metrics of this run are; the same on all ranks.
  std::string run_folder;
};

// Trains a model on all ranks of a world. Every rank constructs it with an equal
// model and calls the same functions; ConfigError says which parameter differs where.
//
// Construction moves the model to the world's device and to config.dtype and gives
// all ranks rank 0's weights. World, optimizer and the model's parameters must
// outlive the trainer. One thread at a time.
class Trainer {
 public:
  Trainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig config, Loss loss = mse);
  Trainer(Trainer&&) noexcept;
  ~Trainer();

  // Trains for exactly config.max_iter epochs. The loader is for the whole data set:
  // each rank draws its share, reshuffled every epoch, and all ranks make the same
  // number of steps. Blocks.
  FitResult fit(const Loader& loader);

  // From now on a signal to any rank, or the job's time limit coming near, ends fit()
  // on all ranks after the same step: each calls `save`, waits for the others, and
  // throws Preempted (see preemption.h).
  void on_preemption(std::function<void()> save);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
