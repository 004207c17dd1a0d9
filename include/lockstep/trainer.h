#pragma once

// The trainer: epochs, validation, checkpoints, trackers and restarts around a model, an optimizer and a
// loss.
//
//   lockstep::Trainer trainer(world, model, optimizer, config, lockstep::mse);
//   trainer.fit(train, validation);

#include <ATen/core/Tensor.h>
#include <lockstep/callbacks.h>
#include <lockstep/config.h>
#include <lockstep/data.h>
#include <lockstep/model.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

struct Batch;
class Model;

// What a loss gives: the loss itself, a scalar that is the mean over the batch's samples,
// with a graph that leads to the model's parameters; and metrics by name, scalars that
// are means over the samples too.
struct LossResult {
  LossResult(at::Tensor loss_, std::map<std::string, at::Tensor> metrics_ = {})  // NOLINT: implicit
      : loss(std::move(loss_)), metrics(std::move(metrics_)) {}

  at::Tensor loss;
  std::map<std::string, at::Tensor> metrics;
};

// A function of a batch and a model that returns a tensor or a LossResult.
using Loss = std::function<LossResult(const Batch&, const Model&)>;

// batch.data() through the model against batch.target().
at::Tensor mse(const Batch& batch, const Model& model);
// Targets are class indices, outputs unnormalised scores.
at::Tensor cross_entropy(const Batch& batch, const Model& model);
// Targets are class indices, outputs log-probabilities.
at::Tensor nll(const Batch& batch, const Model& model);

// One of these by its name: "mse", "cross_entropy", "nll". ConfigError names them.
Loss loss_named(const std::string& name);

// The same loss with the metric "accuracy": the share of samples whose highest output is
// the target. The model runs once.
LossResult cross_entropy_with_accuracy(const Batch& batch, const Model& model);
LossResult nll_with_accuracy(const Batch& batch, const Model& model);

class GradientFreeOptimizer;
class TrackerSet;
class World;
struct GradientStatistics;

struct FitResult {
  // In all, those before a resume included.
  int64_t epochs = 0;
  int64_t steps = 0;
  // Mean loss of the last epoch over all samples of all ranks.
  double train_loss = 0;
  // train_..., val_...: as the callbacks saw them last.
  std::map<std::string, double> metrics;
  // Of this call over all ranks.
  double samples_per_s = 0;
  // Steps that fp16's gradient scaler left out.
  int64_t skipped_steps = 0;
  // Why training ended before max_iter; empty: it did not.
  std::string stopped;
  // Where configuration, metrics and checkpoints of this run are; the same on all ranks.
  std::string run_folder;
};

struct Evaluation {
  double loss = 0;
  std::map<std::string, double> metrics;
  int64_t samples = 0;
};

// Which weights of a model: as the optimizer has left them, or the average over the steps that
// config.ema_decay asks for.
enum class Weights { kTrained, kAverage };

// What a custom step works with. closure() zeroes the gradients, runs forward and
// backward over the step's batches, reduces, unscales and clips: gradients are then ready
// for optimizer.step(). It may be called several times.
struct StepContext {
  const std::vector<Batch>& batches;
  const Model& model;
  torch::optim::Optimizer& optimizer;
  const std::function<LossResult()>& closure;
};
using OptimizeStep = std::function<LossResult(const StepContext&)>;

// Trains a model on all ranks of a world. Every rank constructs it with an equal
// model and calls the same functions; ConfigError says which parameter differs where.
//
// Construction moves the model to the world's device and to config.dtype and gives
// all ranks rank 0's weights. World, optimizer and the model's parameters must
// outlive the trainer. One thread at a time.
//
// Subclasses override the hooks; callbacks come with the configuration. Their order is
// that of Stage.
class Trainer {
 public:
  struct Impl;

  Trainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig config, Loss loss = mse);
  // Without gradients: each step asks for candidates, every rank evaluates its share of
  // them on the batch, and training ends on the best point. The optimizer must be made
  // alike on all ranks.
  Trainer(World& world, Model model, GradientFreeOptimizer& optimizer, TrainConfig config, Loss loss = mse);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  virtual ~Trainer();

  // Trains until config.max_iter epochs are done, or something asks it to stop. The data
  // are whole: each rank draws its share, reshuffled every epoch, and all ranks make the
  // same number of steps. Without data an epoch is one step on an empty batch. Blocks.
  //
  // A second call trains anew, in a run folder of its own: weights, the optimizer's state, the
  // loss scale and the average of weights are as the first one left them; epochs, steps,
  // learning-rate schedules and callbacks begin again, with config.deepspeed_config too.
  //
  // A checkpoint in the run folder is gone on from, where config.resume allows it.
  // Ctrl-C ends it after the step; where checkpoints are on, SIGTERM, SIGUSR1 and
  // SIGUSR2 to any rank, or the job's time limit coming near, save one and throw
  // Preempted (see launch.h).
  FitResult fit(const DataSource& train = {}, const DataSource& validation = {});

  // Mean loss and metrics over the whole loader, each sample once whatever the number of
  // ranks, without gradients; with the averaged weights where config.ema_decay asks for
  // them. validate() runs the val stages, test() the test stages.
  // Of several loaders by name the shortest ends it.
  Evaluation validate(const DataSource& data);
  Evaluation test(const DataSource& data);
  // The model's outputs for all samples, in the order of the data, on the CPU of every
  // rank.
  at::Tensor predict(const Loader& loader);

  // While the result lives all parameters can be read, those of a divided model too
  // (config.zero.stage 3, or zero.overlap_gather). Every rank calls it.
  [[nodiscard]] std::shared_ptr<void> gather_parameters();
  // Rank 0 writes the weights, as lockstep::save_weights() does. Every rank calls it: a
  // divided model is put together for it. kAverage: those that validate(), test() and predict()
  // use with config.ema_decay. ConfigError: there is no average.
  void save_weights(const std::string& file, Weights which = Weights::kTrained);

  // Rank 0 writes report.html, a page with the curves of this run, to the run folder, and prints its
  // path if config.verbose. If that fails, it logs a warning: the metrics are in the run folder, and
  // `lockstep report` can be run later. ConfigError: fit() has not run.
  void write_report();

  // Replaces the step: what happens between a batch and changed weights.
  void set_optimize_step(OptimizeStep step);
  // Called at preemption, beside the checkpoint, and instead of one where checkpoints
  // are off.
  void on_preemption(std::function<void()> save);

  // Trains without gradients, or with another optimizer, while the scope lives.
  class OptimizerScope {
   public:
    ~OptimizerScope();
    OptimizerScope(OptimizerScope&&) noexcept;
    OptimizerScope& operator=(OptimizerScope&&) = delete;

   private:
    friend class Trainer;
    struct Saved;
    explicit OptimizerScope(std::unique_ptr<Saved> saved);
    std::unique_ptr<Saved> saved_;
  };
  [[nodiscard]] OptimizerScope disable_grad_opt(GradientFreeOptimizer& optimizer);
  [[nodiscard]] OptimizerScope enable_grad_opt(torch::optim::Optimizer& optimizer);

  // --- for callbacks and hooks ---

  const World& world() const;
  const TrainConfig& config() const;
  const Model& model() const;
  // ConfigError: training without gradients.
  torch::optim::Optimizer& optimizer() const;
  Stage stage() const;
  const TrainResult& result() const;
  void modify_result(const std::function<void(TrainResult&)>& change);
  // ConfigError lists the metrics there are.
  double metric(const std::string& name) const;
  // Where metrics go; empty on ranks other than 0, and outside of fit().
  TrackerSet& trackers();
  // Where the run leaves its files, the same on all ranks; empty before the first fit().
  const std::string& run_folder() const;
  // Rank 0 writes the text and an end of line to standard output, clear of the progress
  // bar; the others do nothing.
  void print(const std::string& text);
  // Ends training at the end of the epoch. One rank's word is enough.
  void stop_training(const std::string& reason);
  // Saves at the end of the step, whatever the periods say. Every rank calls it.
  void save_checkpoint();

 protected:
  virtual void on_train_start() {}
  virtual void on_train_end() {}
  virtual void on_train_epoch_start() {}
  virtual void on_train_epoch_end() {}
  virtual void on_train_batch_start(const Batch& batch) {}
  virtual void on_train_batch_end(const LossResult& result) {}
  virtual void on_val_epoch_start() {}
  virtual void on_val_epoch_end() {}
  virtual void on_val_batch_start(const Batch& batch) {}
  virtual void on_val_batch_end(const LossResult& result) {}
  virtual void on_test_batch_start(const Batch& batch) {}
  virtual void on_test_batch_end(const LossResult& result) {}

 private:
  friend class GradientMonitoring;
  // Of the step before, at kTrainBatchEnd. Every rank calls it; the result is on rank 0.
  std::vector<GradientStatistics> gradient_statistics(bool with_values);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
