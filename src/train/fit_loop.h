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
#include "train/step_log.h"
#include "train/step_trace.h"
#include "train/time_limits.h"
#include "train/trainer_impl.h"

namespace lockstep::train {

// The steps of an epoch.
int64_t steps_of_epoch(const BatchSource& data, const TrainConfig& config);

// One call of Trainer::fit: the run folder, the data, and the loop over epochs and steps.
class FitLoop {
 public:
  // ConfigError: configuration and data do not match.
  FitLoop(Trainer::Impl& trainer, const DataSource& train, const DataSource& validation);
  ~FitLoop();

  FitResult run();

  // What a callback asks for at its stage.
  void act(FitAction action);

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
  // Whether a limit or an agreement of the ranks has ended training.
  bool has_stopped() const { return !progress_.stopped.empty() || interrupted_; }
  bool train_step();
  // After each step: asks the clock, and the number of steps, whether training ends or is saved.
  void look_at_limits();
  // Writes the values of this step to the trackers, if they are due. Collective.
  void log_step(const LossResult& outcome, int64_t samples);
  // Whether the epoch has batches for another step.
  bool has_another_step() const;
  // Called before a step if a callback reads its gradients.
  void watch_gradients();
  void check_finite(double loss) const;
  // Called after a step that is not the last one of its epoch. Returns whether to leave the epoch.
  bool after_step();
  void finish_epoch();
  // Training ends in the middle of an epoch: its metrics so far are those of the run. The sums stay, for a
  // resume with a later end.
  void finish_part_of_epoch();
  // Loss and metrics of the batches that `sums_` has become the metrics of training. Returns the samples.
  double record_training();
  bool validates() const { return config_.val_every > 0 || config_.val_every_steps > 0; }
  bool validation_due_after_step() const {
    return config_.val_every_steps > 0 && progress_.result.step % config_.val_every_steps == 0;
  }
  void validate();
  // The metric by which validations are compared. ConfigError: the validations have none of its name.
  double value_of_best_metric() const;
  // Whether checkpoint_keep_best keeps several checkpoints, those with the best values. A criterion of one's
  // own gives no order: it only finds new bests.
  bool ranks_by_value() const { return config_.checkpoint_keep_best > 1 && !config_.validation_criterion; }
  // Whether a checkpoint with this value of best_metric would be one of them.
  bool is_among_best(double value) const;
  // The value of a state that is saved now becomes one of the best saved ones, if it is one.
  void add_best_value(double value);
  // Waits until the last save is on disk. If it failed, its value is no longer among the saved ones.
  // Collective.
  void finish_saves();
  // Ends training on all ranks if one rank has asked for it. Collective.
  void agree_to_stop();
  void check_epoch_so_far() const;
  // Called before weights are saved. All ranks throw if one rank has weights that are not finite.
  // Collective.
  void check_weights() const;
  // `resumable`: everything is saved, also with checkpoint_weights_only.
  void save(bool wait = false, bool resumable = false);
  // Whether a validation is a new best: by validation_criterion, or better than the best by val_epsilon.
  bool is_better(double value, double best) const;
  // Whether the state that is saved now, with this value of best_metric, is the best saved one.
  bool is_best_saved(double value);
  // What is known of the values of saved states. A save that fails in the background takes back its own.
  struct BestSaved {
    double best;
    int64_t best_step;
    std::vector<double> values;
    int64_t values_step;
  };
  void save_on_request();
  // Waits until the last state is on disk, or cannot be written.
  void save_at_end();
  // After a signal or at the time limit: saves, and throws Preempted unless it was Ctrl-C.
  void handle_preemption();

  // Metrics of all ranks; `own`: those of training are this rank's.
  std::map<std::string, double> shown_metrics(bool own) const;
  // `is_part`: the epoch ends before its last step.
  void write_metrics(bool is_part = false);
  // The metrics of a validation inside an epoch.
  void write_validation();
  // If it is due.
  void print_line(bool is_part = false);
  void print_metrics(bool is_part = false);
  void write_plots();
  void draw_plots();
  // The metrics and the learning rate to the trackers.
  void write_now();
  void log_model();
  ProgressState position() const;
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
  StepLog step_log_;
  TimeLimits limits_;
  DeviceCopy copy_to_device_;
  Checkpointing checkpoints_;
  std::optional<TrackerSet> trackers_;  // on rank 0
  std::optional<Preemption> preemption_;
  ProgressBar bar_;
  MetricSums sums_;
  MetricSums::Means own_;  // this rank's means of the last epoch
  TrainState state_;

  StepBatches batches_;  // of the running step
  StepTrace trace_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point epoch_start_ = Clock::now();
  int64_t first_step_ = 0;                // of this call
  int64_t validated_step_ = -1;           // the step whose weights were validated last
  int64_t best_step_ = -1;                // the step with the best validation of this call
  int64_t best_saved_step_ = -1;          // the same among the saved states
  int64_t best_values_step_ = -1;         // the state whose value was added to the best values last
  std::optional<BestSaved> before_save_;  // before the last save, until it is known whether it failed
  double samples_ = 0;                    // of this call, over all ranks
  double own_samples_ = 0;                // of this call, on this rank
  double epoch_samples_per_s_ = 0;
  Clock::duration paused_{0};                  // of this epoch: validations inside it
  Clock::duration stepping_{0};                // of this call: its steps before the running one
  Clock::time_point step_start_;               // of the running step
  bool save_by_time_ = false;                  // after this step
  std::chrono::nanoseconds waited_before_{0};  // for collectives, until the last write
  bool save_if_best_ = false;                  // the running validation, for SaveBestCheckpoint
  bool interrupted_ = false;                   // Ctrl-C, or a preemption
};

}  // namespace lockstep::train
