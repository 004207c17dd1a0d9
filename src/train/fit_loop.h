#pragma once

#include <lockstep/launch.h>
#include <lockstep/track.h>

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "train/batch_source.h"
#include "train/checkpointing.h"
#include "train/metric_sums.h"
#include "train/progress_bar.h"
#include "train/run_folder.h"
#include "train/snapshot.h"
#include "train/step.h"
#include "train/trainer_impl.h"

namespace lockstep::train {

// One call of Trainer::fit: the run folder, the data, and the loop over epochs and steps.
class FitLoop {
 public:
  // ConfigError: configuration and data do not match.
  FitLoop(Trainer::Impl& trainer, const DataSource& train, const DataSource& validation);
  ~FitLoop();

  FitResult run();

 private:
  using Clock = std::chrono::steady_clock;

  void check_configuration() const;
  // Starts the run, or resumes it from a checkpoint.
  void start_or_resume();
  // Whether the run in the folder has ended for the same max_iter with the checkpoint that was resumed,
  // so that nothing is left to train.
  bool has_ended() const;
  void open_trackers(bool resumed);
  void announce() const;

  void train_epoch();
  bool train_step();
  // Whether the epoch has batches for another step.
  bool has_another_step() const;
  // Called before a step if a callback reads its gradients.
  void watch_gradients();
  void check_finite(double loss) const;
  // Called after a step that is not the last one of its epoch. Returns whether to leave the epoch.
  bool after_step();
  void finish_epoch();
  void validate();
  // Ends training on all ranks if one rank has asked for it. Collective.
  void agree_to_stop();
  void check_epoch_so_far() const;
  // Called before weights are saved. All ranks throw if one rank has weights that are not finite.
  // Collective.
  void check_weights() const;
  void save(bool wait = false);
  // Whether a validation is a new best: by validation_criterion, or less than the best by val_epsilon.
  bool is_better(double loss, double best) const;
  // Whether the state that is saved now, with this validation loss, is the best saved one.
  bool is_best_saved(double loss);
  void save_on_request();
  // Waits until the last state is on disk, or cannot be written.
  void save_at_end();
  // After a signal or at the time limit: saves, and throws Preempted unless it was Ctrl-C.
  void handle_preemption();

  // Metrics of all ranks; `own`: those of training are this rank's.
  std::map<std::string, double> shown_metrics(bool own) const;
  void write_metrics();
  void print_line();
  void write_plots();
  void show_progress(double loss);
  // Rank 0: the hyperparameters of the run, and the metrics so far.
  void write_hyperparameters(const FinalMetrics& metrics);
  void finish_trackers();
  void print_summary(const FitResult& result, double seconds) const;
  FitResult finish();

  Trainer::Impl& trainer_;
  World& world_;
  const TrainConfig& config_;
  Step& step_;
  TrainingProgress& progress_;
  const DataSource validation_;
  RunFolder folder_;
  BatchSource data_;
  DeviceCopy copy_to_device_;
  Checkpointing checkpoints_;
  std::optional<TrackerSet> trackers_;  // on rank 0
  std::optional<Preemption> preemption_;
  ProgressBar bar_;
  MetricSums sums_;
  MetricSums::Means own_;  // this rank's means of the last epoch
  TrainState state_;

  StepBatches batches_;  // of the running step
  Clock::time_point start_ = Clock::now();
  Clock::time_point epoch_start_ = Clock::now();
  int64_t first_step_ = 0;        // of this call
  int64_t validated_step_ = -1;   // the step whose weights were validated last
  int64_t best_step_ = -1;        // the step with the best validation of this call
  int64_t best_saved_step_ = -1;  // the same among the saved states
  double samples_ = 0;            // of this call, over all ranks
  double own_samples_ = 0;        // of this call, on this rank
  double epoch_samples_per_s_ = 0;
  std::chrono::nanoseconds waited_before_{0};  // for collectives, until the last write
  bool interrupted_ = false;                   // Ctrl-C, or a preemption
};

}  // namespace lockstep::train
