#pragma once

#include <lockstep/callback.h>
#include <lockstep/learning_rate.h>
#include <lockstep/reduce_on_plateau.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace lockstep {

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

}  // namespace lockstep
