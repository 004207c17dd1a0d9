#pragma once

// Trains a model on all ranks: epochs, gradient reduction or sharding, validation, checkpoints and
// resume, trackers, preemption. A trainer needs a world, a model, an optimizer, a configuration and a
// loss.
//
// Example:
//
//   lockstep::Trainer trainer(world, net, optimizer, config, lockstep::mse);
//   const lockstep::FitResult result = trainer.fit(loader);
//   trainer.save_weights("net.safetensors");
//   trainer.print("loss " + std::to_string(result.train_loss));
//
// More: docs/trainer.md

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

// A metric that is computed from sums over all samples: its own counts of one batch, and the function from
// the sum of all counts, over all batches and ranks, to the value. The function runs on the host and gets
// float64.
struct MetricCounts {
  at::Tensor counts;  // numbers of any shape, the same in all batches
  std::function<double(const at::Tensor& sums)> value;
  // The counts have a row for each sample, and those of all batches and ranks are appended instead of added.
  // The rows of single steps have no such metric.
  bool appended = false;
};

// The result of a loss function. `loss` is a scalar, the mean over the samples of the batch, with a
// graph that leads to the model's parameters. `metrics` are scalars by name, means over the samples
// too. `counts` are metrics that are not means over samples, such as F1, by other names.
struct LossResult {
  LossResult(at::Tensor loss_, std::map<std::string, at::Tensor> metrics_ = {},  // NOLINT: implicit
             std::map<std::string, MetricCounts> counts_ = {})
      : loss(std::move(loss_)), metrics(std::move(metrics_)), counts(std::move(counts_)) {}

  at::Tensor loss;
  std::map<std::string, at::Tensor> metrics;
  std::map<std::string, MetricCounts> counts;
};

// A function of a batch and a model that returns a tensor or a LossResult.
using Loss = std::function<LossResult(const Batch&, const Model&)>;

// The tensors of a batch that the model takes: its first model.num_inputs() ones. ConfigError: it has
// fewer.
std::vector<at::Tensor> inputs_of(const Batch& batch, const Model& model);

// The losses below compare the model's first output with the tensor after the inputs: for one input,
// its output for batch.data() with batch.target().

// Mean squared error.
at::Tensor mse(const Batch& batch, const Model& model);
// Targets are class indices, outputs are unnormalised scores.
at::Tensor cross_entropy(const Batch& batch, const Model& model);
// Targets are class indices, outputs are log-probabilities.
at::Tensor nll(const Batch& batch, const Model& model);

// A loss by its name: "mse", "cross_entropy" or "nll". ConfigError: another name; it lists these.
Loss loss_named(const std::string& name);

// The same losses with the metric "accuracy": the fraction of samples whose highest output is the
// target. The model runs once.
LossResult cross_entropy_with_accuracy(const Batch& batch, const Model& model);
LossResult nll_with_accuracy(const Batch& batch, const Model& model);

// Metrics of classifiers for a loss of your own, exact over batches and ranks. `scores` is [samples,
// classes], `target` has class indices.
//
//   result.metrics["top5"] = lockstep::top_k_accuracy(scores, batch.target(), 5);
//   result.counts["f1"] = lockstep::f1_counts(scores, batch.target());

// The fraction of samples whose target is among the k highest scores: a scalar for LossResult::metrics.
// ConfigError: k is not from 1 to classes.
at::Tensor top_k_accuracy(const at::Tensor& scores, const at::Tensor& target, int64_t k);

// kMacro: the mean of the classes' F1, where a class that occurs neither in targets nor in predictions does
// not count. kMicro: F1 of all samples together.
enum class F1Average { kMacro, kMicro };

// F1 of the class with the highest score, for LossResult::counts.
MetricCounts f1_counts(const at::Tensor& scores, const at::Tensor& target,
                       F1Average average = F1Average::kMacro);

// The area under the receiver operating characteristic of two classes, for LossResult::counts: the
// probability that a sample of class 1 has a higher score than one of class 0, where equal scores count half.
// `scores` and `target` have one number for each sample; a target is 0 or 1. NaN if one class has no sample,
// or a score is NaN. Exact, so all scores are kept: 16 bytes for each sample on its rank, and while the value
// is computed, those of all ranks on every rank.
MetricCounts auroc_counts(const at::Tensor& scores, const at::Tensor& target);

class GradientFreeOptimizer;
class TrackerSet;
class World;
struct GradientStatistics;

// The result of Trainer::fit().
struct FitResult {
  // Totals, including those before a resume.
  int64_t epochs = 0;
  int64_t steps = 0;
  // Mean loss of the last epoch over all samples of all ranks.
  double train_loss = 0;
  // The last values of train_... and val_... that callbacks saw.
  std::map<std::string, double> metrics;
  // Samples of all ranks per second, during this call.
  double samples_per_s = 0;
  // Steps that the gradient scaler of fp16 skipped.
  int64_t skipped_steps = 0;
  // Why training ended before max_iter; empty: it did not.
  std::string stopped;
  // The folder with configuration, metrics and checkpoints of this run; the same on all ranks.
  std::string run_folder;
};

// Means over all samples of all ranks, and the number of these samples.
struct Evaluation {
  double loss = 0;
  std::map<std::string, double> metrics;
  int64_t samples = 0;
};

// Which weights of a model: those that the optimizer updates, or their average
// (TrainConfig::ema_decay).
enum class Weights { kTrained, kAverage };

// The arguments of a custom step. closure() zeroes the gradients, runs forward and backward over the
// step's batches, and reduces and clips: the gradients are then ready for optimizer.step(). It may be
// called several times, on all ranks alike.
struct StepContext {
  const std::vector<Batch>& batches;
  const Model& model;
  torch::optim::Optimizer& optimizer;
  const std::function<LossResult()>& closure;
};
using OptimizeStep = std::function<LossResult(const StepContext&)>;

// Trains a model on all ranks of a world. Collective: every rank constructs it with an equal model and
// calls the same functions in the same order.
//
// Construction moves the model to the world's device and to config.dtype, and copies rank 0's weights
// to all ranks. World, optimizer and the model's parameters must outlive the trainer. One thread at a
// time.
//
// Subclasses override the hooks; callbacks are in the configuration. Stage describes their order.
class Trainer {
 public:
  struct Impl;

  // ConfigError: the ranks' models differ (it names the parameter and the rank), or the configuration
  // does not fit the model or the optimizer.
  Trainer(World& world, Model model, torch::optim::Optimizer& optimizer, TrainConfig config, Loss loss = mse);
  // Training without gradients: each step asks the optimizer for candidates, every rank evaluates its
  // share of them on the batch, and training ends with the best point. The optimizer must have the same
  // options and seed on all ranks.
  Trainer(World& world, Model model, GradientFreeOptimizer& optimizer, TrainConfig config, Loss loss = mse);
  Trainer(const Trainer&) = delete;
  Trainer& operator=(const Trainer&) = delete;
  virtual ~Trainer();

  // Trains until config.max_iter epochs are done, or until a callback, a criterion or a signal stops
  // it. Collective; blocks. Give every rank the whole data: each rank draws its share, reshuffled every
  // epoch if the loader shuffles, and all ranks make the same number of steps. Without data an epoch is
  // one step on an empty batch.
  //
  // Resumes from a checkpoint in the run folder if config.resume allows it. Ctrl-C ends training after
  // the step. If checkpoints are on, SIGTERM, SIGUSR1 or SIGUSR2 to any rank, or a time limit that is
  // near, saves a checkpoint and throws Preempted (see launch.h).
  //
  // A second call starts another training in a run folder of its own. It keeps the weights, the
  // optimizer's state, the loss scale and the average of weights. Epochs, steps, learning-rate
  // schedules and callbacks start again, also with config.deepspeed_config.
  FitResult fit(const DataSource& train = {}, const DataSource& validation = {});

  // Adds a validation set: each validation of fit() runs over these sets, in the order of their names, and
  // then over the second argument of fit(). Their metrics are val_NAME_loss, val_NAME_accuracy and so on. The
  // data must outlive fit(). Call it on all ranks. ConfigError: the name is empty or already used.
  void add_validation_set(const std::string& name, const DataSource& data);

  // Mean loss and metrics over all samples of the data, each sample once for any number of ranks,
  // without gradients. Uses the averaged weights if config.ema_decay is set. validate() runs the val
  // stages, test() the test stages. With several loaders by name the shortest one ends it. Collective;
  // blocks.
  Evaluation validate(const DataSource& data);
  Evaluation test(const DataSource& data);
  // The model's outputs for all samples, in the order of the data, on the CPU of every rank. Uses the
  // averaged weights if config.ema_decay is set. Collective; blocks.
  at::Tensor predict(const Loader& loader);

  // While the result exists all parameters can be read, also those that config.zero.stage 3 shards or
  // zero.overlap_gather still gathers. Collective.
  [[nodiscard]] std::shared_ptr<void> gather_parameters();
  // Rank 0 writes the weights, as lockstep::save_weights() does. Collective: sharded parameters are
  // gathered for it. kAverage: the weights that validate(), test() and predict() use with
  // config.ema_decay. ConfigError: there is no average; or, if parameters are sharded, not every rank
  // called it.
  void save_weights(const std::string& file, Weights which = Weights::kTrained);

  // Rank 0 writes report.html, a page with the curves of this run, to the run folder, and prints its
  // path if config.verbose. If that fails, it logs a warning: the metrics are in the run folder, and
  // `lockstep report` can be run later. ConfigError: fit() has not run.
  void write_report();

  // Replaces the step, that is, what happens between a batch and changed weights. Not with fp16,
  // with a sharded model or with config.deepspeed_config: fit() then throws ConfigError.
  void set_optimize_step(OptimizeStep step);
  // `save` is called at preemption, in addition to the checkpoint, or alone if checkpoints are off.
  // Called on every rank.
  void on_preemption(std::function<void()> save);

  // Replaces the optimizer while the object exists, by one without gradients or by another one with
  // gradients. It must not outlive the trainer. ConfigError: fit() is running.
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
  // The configuration in use, after a DeepSpeed file has overridden its part.
  const TrainConfig& config() const;
  const Model& model() const;
  // ConfigError: training runs without gradients.
  torch::optim::Optimizer& optimizer() const;
  Stage stage() const;
  const TrainResult& result() const;
  void modify_result(const std::function<void(TrainResult&)>& change);
  // A metric of result(). ConfigError: there is none of this name; it lists the others.
  double metric(const std::string& name) const;
  // The trackers of the run; empty on ranks other than 0 and outside of fit().
  TrackerSet& trackers();
  // The folder of the run's files, the same on all ranks; empty before the first fit().
  const std::string& run_folder() const;
  // Rank 0 writes the text and a newline to standard output, without damage to the progress bar. Other
  // ranks do nothing.
  void print(const std::string& text);
  // Ends training at the end of the epoch. It is enough if one rank calls it.
  void stop_training(const std::string& reason);
  // Saves a checkpoint at the end of the step, independent of the configured periods. Every rank calls
  // it.
  void save_checkpoint();

 protected:
  virtual void on_train_start() {}
  // The mean losses of all ranks after each epoch, and of each validation, also those before a resume.
  virtual void on_train_end(const std::vector<double>& train_losses, const std::vector<double>& val_losses) {}
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
  friend class FitCallback;
  void act(FitAction action);
  // Statistics of the last step's gradients, at kTrainBatchEnd. Collective; the result is on rank 0.
  std::vector<GradientStatistics> gradient_statistics(bool with_values);

  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep
