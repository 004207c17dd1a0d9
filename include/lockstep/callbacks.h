#pragma once

// Runs code at the stages of a training: a function, a subclass of Callback, or one of the callbacks
// here (learning-rate schedules, early stopping, monitoring of gradients). TrainConfig::callbacks takes
// them.
//
// Example:
//
//   lockstep::TrainConfig own = config;
//   own.callbacks = {
//       std::make_shared<lockstep::ScheduleLearningRate>(lockstep::step_decay({.every = 30, .gamma = 0.1})),
//       std::make_shared<lockstep::EarlyStopping>(lockstep::EarlyStoppingOptions{.monitor = "train_loss"})};
//   lockstep::Trainer(world, net, optimizer, own).fit(loader);
//
// More: docs/trainer.md

#include <lockstep/schedule.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

class Trainer;

// The stages of a training. Callbacks and hooks (virtual functions of Trainer) run in this order:
//
//   train_start
//     for each epoch:  train_epoch_start
//                        for each batch:  train_batch_start, train_batch_end
//                      train_epoch_end
//                      if validation is due:
//                        val_epoch_start, for each batch: val_batch_start, val_batch_end,
//                        val_epoch_end
//   train_end
//
// At every start the hook runs first, then the callbacks; at every end the callbacks, then the hook.
// Validation before the first epoch has its stages too. With accumulate_steps a batch stage is an
// optimizer step.
enum class Stage {
  kIdle,
  kTrainStart,
  kTrainEnd,
  kTrainEpochStart,
  kTrainEpochEnd,
  kTrainBatchStart,
  kTrainBatchEnd,
  kValEpochStart,
  kValEpochEnd,
  kValBatchStart,
  kValBatchEnd,
  kTestBatchStart,
  kTestBatchEnd,
};

// For example "train_epoch_end".
const char* to_string(Stage stage);

// The state of a training at a stage. Metrics are means over all samples of all ranks: train_loss and
// train_NAME of the last epoch, val_loss and val_NAME of the last validation, test_loss and test_NAME
// of the last test. At a batch stage `loss` is the loss of the batch on this rank, NaN if it was not
// read from the device.
struct TrainResult {
  int64_t iteration = 0;  // epochs started, from 1
  int64_t step = 0;       // steps of the optimizer
  // Batches of this epoch that were finished before a resume; 0 if the epoch started in this process.
  int64_t first_batch = 0;
  // Samples of all ranks in the last validation or test. TrainConfig::max_val_batches limits them.
  int64_t evaluated_samples = 0;
  double loss = 0;
  std::map<std::string, double> metrics;
  int rank = 0;
  std::string device;
};

struct CallbackOptions {
  Stage on = Stage::kTrainEpochEnd;
  // Runs if this divides the count: of batches at a batch stage, of epochs at other stages. 0: never.
  // Callbacks at train_start and train_end always run.
  int64_t called_every = 1;
  // Runs only if this returns true. Empty: always.
  std::function<bool(const Trainer&)> condition = {};
  // Changes the result, for later callbacks and for printed and written metrics. Runs before the
  // callback itself.
  std::function<void(TrainResult&)> modify_result = {};
};

// Code that runs at a stage of training, on every rank. It may call collectives, if it calls the same
// ones on all ranks. Either a function or a subclass that overrides run(). Called by the thread that
// called fit().
class Callback {
 public:
  // ConfigError: the stage is kIdle, or called_every is negative.
  Callback(const CallbackOptions& options, std::function<void(Trainer&)> function);
  virtual ~Callback();
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  Stage on() const { return options_.on; }
  int64_t called_every() const { return options_.called_every; }

  // Called by the trainer at stage on(); runs the callback if it is due.
  void call(Trainer& trainer, int64_t count);

  // State that must survive a restart, as text. Checkpoints keep rank 0's state under name() and give
  // it to all ranks. Callbacks with the same name are matched by their order in the configuration.
  virtual std::string name() const { return "callback"; }
  virtual std::string state() const { return {}; }
  virtual void load_state(const std::string& state) {}
  // Called when a new training starts: forget the state of the one before.
  virtual void reset() {}

 protected:
  explicit Callback(const CallbackOptions& options);
  virtual void run(Trainer& trainer);

 private:
  CallbackOptions options_;
  std::function<void(Trainer&)> function_;
};

// What the trainer does by the fields of TrainConfig, as callbacks for other stages and periods: add one,
// and leave the field at 0 to have it only there.
//
//   own.callbacks = {std::make_shared<lockstep::PrintMetrics>(
//       lockstep::CallbackOptions{.on = lockstep::Stage::kValEpochEnd, .called_every = 10})};
enum class FitAction {
  kPrintMetrics,
  kWriteMetrics,
  kWritePlots,
  kLogHyperparameters,
  kLogModel,
  kSaveCheckpoint,
  kSaveBestCheckpoint,
};

class FitCallback : public Callback {
 public:
  FitAction action() const { return action_; }

 protected:
  FitCallback(FitAction action, const CallbackOptions& options);
  void run(Trainer& trainer) override;

 private:
  const FitAction action_;
};

// Prints the line of TrainConfig::print_every, on rank 0, or with print_all_ranks on every rank.
class PrintMetrics : public FitCallback {
 public:
  explicit PrintMetrics(const CallbackOptions& options = {})
      : FitCallback(FitAction::kPrintMetrics, options) {}
};

// Writes the metrics and the learning rate to the trackers.
class WriteMetrics : public FitCallback {
 public:
  explicit WriteMetrics(const CallbackOptions& options = {})
      : FitCallback(FitAction::kWriteMetrics, options) {}
};

// Calls TrainConfig::plotting_functions, which must not be empty, and writes the images to the trackers.
class WritePlots : public FitCallback {
 public:
  explicit WritePlots(const CallbackOptions& options = {}) : FitCallback(FitAction::kWritePlots, options) {}
};

// Writes TrainConfig::hyperparams with the metrics so far to the trackers.
class LogHyperparameters : public FitCallback {
 public:
  explicit LogHyperparameters(const CallbackOptions& options = {.on = Stage::kTrainEnd})
      : FitCallback(FitAction::kLogHyperparameters, options) {}
};

// Gives the weights to the trackers, as TrainConfig::log_model does. ConfigError: a stage of single batches
// of a validation or a test, of which ranks have different numbers.
class LogModelTracker : public FitCallback {
 public:
  explicit LogModelTracker(const CallbackOptions& options = {.on = Stage::kTrainEnd})
      : FitCallback(FitAction::kLogModel, options) {}
};

// Saves a checkpoint at the end of the step or of the epoch, also if checkpoint_every is 0. ConfigError: as
// LogModelTracker.
class SaveCheckpoint : public FitCallback {
 public:
  explicit SaveCheckpoint(const CallbackOptions& options = {})
      : FitCallback(FitAction::kSaveCheckpoint, options) {}
};

// Saves a checkpoint if the validation that has just run is the best so far, also if checkpoint_every is
// 0. ConfigError: another stage than kValEpochEnd. The training must validate.
class SaveBestCheckpoint : public FitCallback {
 public:
  explicit SaveBestCheckpoint(const CallbackOptions& options = {.on = Stage::kValEpochEnd});
};

// Resumes from a checkpoint, as TrainConfig::resume does: from a path, or from the newest valid one in
// the run folder. It replaces that field. All ranks load, before kTrainStart.
class LoadCheckpoint : public Callback {
 public:
  explicit LoadCheckpoint(std::string path = "auto");

  const std::string& path() const { return path_; }

 protected:
  void run(Trainer& trainer) override {}

 private:
  const std::string path_;
};

struct LivePlotOptions {
  CallbackOptions callback = {};
  // Names of metrics; empty: all losses.
  std::vector<std::string> metrics = {};
  // Characters of the plot.
  int width = 60;
  int height = 12;
};

// Prints the curves of metrics as text on rank 0, each with a letter of its own. `lockstep report` draws
// them on a page.
class LivePlotMetrics : public Callback {
 public:
  // ConfigError: a width or a height below 2.
  explicit LivePlotMetrics(const LivePlotOptions& options = {});

  std::string name() const override { return "live_plot"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override { curves_.clear(); }

  // The plot of the values so far.
  std::string plot() const;

 protected:
  void run(Trainer& trainer) override;

 private:
  struct Point {
    double x = 0;  // epochs
    double y = 0;
  };

  const LivePlotOptions options_;
  std::map<std::string, std::vector<Point>> curves_;
};

// The callbacks that only a program adds.

// Sets the learning rates by a schedule. The step of the schedule is the number of finished epochs, or
// of finished optimizer steps. A resumed run continues at its step.
class ScheduleLearningRate : public Callback {
 public:
  enum class Per { kEpoch, kStep };
  explicit ScheduleLearningRate(LearningRateSchedule schedule, Per per = Per::kEpoch);
  ~ScheduleLearningRate() override;

  std::string name() const override { return "learning_rate"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override { loaded_.clear(); }

 protected:
  void run(Trainer& trainer) override;

 private:
  LearningRateSchedule schedule_;
  const Per per_;
  const torch::optim::Optimizer* optimizer_ = nullptr;  // whose rates scheduled_ sets
  std::unique_ptr<ScheduledLearningRate> scheduled_;
  std::string loaded_;
};

// Reduces the learning rates when a metric of all ranks stops improving. ConfigError at its first call:
// there is no such metric.
class ReduceLearningRateOnPlateau : public Callback {
 public:
  // Looks at a validation metric (val_...) after each validation, at other metrics after each epoch.
  explicit ReduceLearningRateOnPlateau(const ReduceOnPlateauOptions& options = {});

  std::string name() const override { return "plateau"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override;

 protected:
  void run(Trainer& trainer) override;

 private:
  ReduceOnPlateau plateau_;
};

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  // Number of misses (values without an improvement) that are tolerated; the next one stops training.
  int64_t patience = 5;
  MetricMode mode = MetricMode::kMin;
  double min_delta = 0;  // an improvement must be larger
};

// Stops training when a metric of all ranks has not improved for some time. ConfigError at its first
// call: there is no such metric.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(const EarlyStoppingOptions& options = {});

  std::string name() const override { return "early_stopping"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override;

 protected:
  void run(Trainer& trainer) override;

 private:
  const EarlyStoppingOptions options_;
  std::optional<double> best_;
  int64_t misses_ = 0;
};

// Stops training when the last `patience` values of a metric of all ranks are all at least `target`,
// for example an accuracy.
class StopAtTarget : public Callback {
 public:
  StopAtTarget(std::string monitor, double target, int64_t patience = 2);

  // Whether the target was reached.
  bool reached() const { return reached_ >= patience_; }

  std::string name() const override { return "stop_at_target"; }
  std::string state() const override;
  void load_state(const std::string& state) override;
  void reset() override;

 protected:
  void run(Trainer& trainer) override;

 private:
  const std::string monitor_;
  const double target_;
  const int64_t patience_;
  int64_t reached_ = 0;  // values in a row
};

// Writes mean, standard deviation, minimum and maximum of every parameter's gradient to the trackers,
// and a histogram if asked. The gradients are those that the step used: reduced, unscaled and clipped,
// at every ZeRO stage and with deepspeed_config. Writes nothing for a step that the loss scaling of
// deepspeed_config skipped. Waits for the device when it is called.
class GradientMonitoring : public Callback {
 public:
  explicit GradientMonitoring(int64_t called_every = 1, bool histograms = false);

  bool has_histograms() const { return histograms_; }

 protected:
  void run(Trainer& trainer) override;

 private:
  const bool histograms_;
};

}  // namespace lockstep
