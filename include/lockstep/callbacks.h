#pragma once

// What happens at the stages of a training: functions, and the callbacks that come with the library.
//
//   config.callbacks = {std::make_shared<lockstep::EarlyStopping>()};

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

// Where a training is. Callbacks and hooks run at these points, in this order:
//
//   train_start
//     for each epoch:  train_epoch_start
//                        for each batch:  train_batch_start, train_batch_end
//                      train_epoch_end
//                      where validation is due:
//                        val_epoch_start, for each batch: val_batch_start, val_batch_end,
//                        val_epoch_end
//   train_end
//
// At every start the hook runs first, then the callbacks; at every end the callbacks,
// then the hook. Validation before the first epoch has its stages too.
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

// "train_epoch_end".
const char* to_string(Stage stage);

// What is known of the training at a stage. Metrics are over all ranks and all samples:
// train_loss and train_NAME of the last epoch, val_loss and val_NAME of the last
// validation, test_... of the last test. At a batch stage loss is that of the batch on
// this rank, NaN where it has not been read from the device.
struct TrainResult {
  int64_t iteration = 0;  // epochs begun, from 1
  int64_t step = 0;       // steps of the optimizer
  // Batches of the running epoch that were done before it began here: 0, unless training
  // goes on in the middle of it.
  int64_t first_batch = 0;
  double loss = 0;
  std::map<std::string, double> metrics;
  int rank = 0;
  std::string device;
};

struct CallbackOptions {
  Stage on = Stage::kTrainEpochEnd;
  // Runs when the count divides by it: of batches at a batch stage, of epochs at the
  // others. 0: never. train_start and train_end run always.
  int64_t called_every = 1;
  // Runs only where this is true; empty: always.
  std::function<bool(const Trainer&)> condition = {};
  // Changes the result, for the callbacks after this one and for everything that is made
  // of it; runs before the callback itself.
  std::function<void(TrainResult&)> modify_result = {};
};

// Something that happens at a stage of training, on every rank: collectives are allowed
// and every rank then makes the same. A function, or a subclass that overrides run().
class Callback {
 public:
  // ConfigError: kIdle, a negative called_every.
  Callback(const CallbackOptions& options, std::function<void(Trainer&)> function);
  virtual ~Callback();
  Callback(const Callback&) = delete;
  Callback& operator=(const Callback&) = delete;

  Stage on() const { return options_.on; }
  int64_t called_every() const { return options_.called_every; }

  // What the trainer calls at stage on(): runs when it is due.
  void call(Trainer& trainer, int64_t count);

  // What must survive a restart, as text; kept in checkpoints under name(): rank 0's,
  // which all ranks get. Of two callbacks with one name the order in the configuration
  // tells them apart.
  virtual std::string name() const { return "callback"; }
  virtual std::string state() const { return {}; }
  virtual void load_state(const std::string& state) {}
  // Another training begins: forget the one before.
  virtual void reset() {}

 protected:
  explicit Callback(const CallbackOptions& options);
  virtual void run(Trainer& trainer);

 private:
  CallbackOptions options_;
  std::function<void(Trainer&)> function_;
};

// The callbacks that a TrainConfig does not make by itself. Those it does make (printing,
// metrics, plots, hyperparameters, the model, checkpoints) follow from its fields.

// Sets the learning rates by a schedule. The step of the schedule is the number of
// finished epochs, or of finished optimizer steps. Goes on after a resume where it was.
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

// Reduces the learning rates when a metric of all ranks stops improving. ConfigError,
// when it is first called: there is no such metric.
class ReduceLearningRateOnPlateau : public Callback {
 public:
  // A metric of validation (val_...) is looked at after each validation.
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
  // Misses that are let pass; the next one stops.
  int64_t patience = 5;
  MetricMode mode = MetricMode::kMin;
  double min_delta = 0;  // a smaller improvement is a miss
};

// Stops when a metric of all ranks has not improved for some time.
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

// Stops when the last `patience` values of a metric of all ranks have all reached a
// target: an accuracy, a fraction.
class StopAtTarget : public Callback {
 public:
  StopAtTarget(std::string monitor, double target, int64_t patience = 2);

  // Whether they have.
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

// Writes mean, deviation, least and greatest of every parameter's gradient to the
// trackers, and a histogram where asked: of the gradients that the step has updated by, reduced,
// unscaled and clipped, at every zero_stage and with config.deepspeed_config. Nothing of a step
// that deepspeed_config's loss scaling has skipped. Waits for the device when it is called.
class GradientMonitoring : public Callback {
 public:
  explicit GradientMonitoring(int64_t called_every = 1, bool histograms = false);

  bool has_histograms() const { return histograms_; }

 protected:
  void run(Trainer& trainer) override;

 private:
  const bool histograms_;
};

// Logs how busy the job's GPUs are while a training runs: every five seconds the first rank on a GPU
// appends a line to gpu.csv in the run folder, on further nodes to gpu_node1.csv and so on, in the CSV
// format of nvidia-smi (docs/recipes.md). On CPUs nothing is written. Returns two callbacks: the first
// starts the log and the second ends it.
std::vector<std::shared_ptr<Callback>> gpu_log();

}  // namespace lockstep
