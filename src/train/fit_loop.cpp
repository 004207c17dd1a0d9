#include "train/fit_loop.h"

#include <fmt/format.h>
#include <lockstep/callbacks.h>
#include <lockstep/error.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <signal.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/log.h"
#include "comm/agree.h"
#include "train/train_options.h"

namespace lockstep::train {
namespace {

PreemptionOptions signals_to_heed(bool can_save) {
  PreemptionOptions options;
  options.signals = {SIGINT};
  if (can_save) options.signals.insert(options.signals.end(), {SIGTERM, SIGUSR1, SIGUSR2});
  return options;
}

// This rank's trained weights: its shards, or all of them.
NamedTensors trained_weights(const Step& step, const Model& model) {
  NamedTensors weights;
  if (const ShardedModel* const sharded = step.sharded()) {
    for (const ShardedModel::Part& part : sharded->parameter_parts()) {
      weights.emplace_back(part.name, part.data);
    }
    return weights;
  }
  for (const auto& [name, parameter] : named_parameters(*model.module())) {
    if (parameter.requires_grad()) weights.emplace_back(name, parameter);
  }
  return weights;
}

// The first tensor with a NaN or an infinity; empty: none. Waits for the device once.
std::string first_broken(const NamedTensors& weights) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const torch::NoGradGuard no_grad;
  std::vector<std::string> names;
  std::vector<at::Tensor> largest;
  for (const auto& [name, weight] : weights) {
    if (weight.numel() == 0 || !(weight.is_floating_point() || weight.is_complex())) continue;
    names.push_back(name);
    // Collected on one device: some may be offloaded.
    const c10::Device device = largest.empty() ? weight.device() : largest.front().device();
    largest.push_back(at::linalg_vector_norm(weight, kInfinity).to(device, at::kDouble));
  }
  if (names.empty()) return {};
  const at::Tensor values = at::stack(largest).cpu();
  for (size_t i = 0; i < names.size(); ++i) {
    if (!std::isfinite(values[static_cast<int64_t>(i)].item<double>())) return names[i];
  }
  return {};
}

}  // namespace

int64_t steps_of_epoch(const BatchSource& data, const TrainConfig& config) {
  return (data.num_batches() + config.accumulate_steps - 1) / config.accumulate_steps;
}

FitLoop::FitLoop(Trainer::Impl& trainer, const DataSource& train, const DataSource& validation)
    : trainer_(trainer),
      world_(trainer.world),
      config_(trainer.config),
      step_(*trainer.step),
      progress_(trainer.progress),
      validation_(validation),
      folder_(world_, config_),
      data_(train, step_.shares_samples() ? 0 : world_.rank(), step_.shares_samples() ? 1 : world_.size(),
            config_),
      step_log_(world_, config_, steps_of_epoch(data_, config_)),
      limits_(world_.communicator(),
              {.max_time_s = config_.max_time_s, .save_every_s = 60 * config_.checkpoint_every_min}),
      copy_to_device_(world_.device(), trainer.dtype),
      checkpoints_(world_, config_, folder_.checkpoints(), step_.sharded() != nullptr),
      bar_(config_.verbose ? config_.progress : "none", world_.is_main()),
      sums_(config_.log_setup == "auto"),
      state_{.step = step_,
             .average = trainer.average ? &*trainer.average : nullptr,
             .data = data_,
             .sums = sums_,
             .callbacks = config_.callbacks,
             .progress = progress_,
             .config = config_},
      batches_(copy_to_device_),
      trace_(config_.trace_steps, folder_.path(), world_.rank(), world_.size(),
             world_.communicator().backend()) {
  check_configuration();
  trainer_.run_folder = folder_.path().string();
  trainer_.bar = &bar_;
  trainer_.write_waiting = [this] { step_log_.write(trainer_.trackers, /*all=*/true); };
  trainer_.loop = this;
  trainer_.fitting = true;
}

FitLoop::~FitLoop() {
  trainer_.trackers = nullptr;
  trainer_.write_waiting = nullptr;
  trainer_.bar = nullptr;
  trainer_.loop = nullptr;
  trainer_.fitting = false;
}

void FitLoop::check_configuration() const {
  if (trainer_.fitting) throw ConfigError("train", "fit() was called inside fit() of the same trainer");
  step_.check_fit(data_.num_batches());
  if (validates() && validation_.empty() && trainer_.validation_sets.empty()) {
    const char* const option = config_.val_every > 0 ? "val_every" : "val_every_steps";
    throw ConfigError("train",
                      fmt::format("{} is {}, and fit() got no data for validation: give it some, or "
                                  "set {} to 0",
                                  option, std::max(config_.val_every, config_.val_every_steps), option));
  }
}

void FitLoop::start_or_resume() {
  // The weights are equal by now. Random numbers (dropout) must differ between ranks.
  torch::manual_seed(config_.seed + static_cast<uint64_t>(world_.rank()));
  progress_.epochs_done = 0;
  progress_.result.step = 0;
  progress_.result.iteration = 0;
  progress_.result.metrics.clear();
  const bool least_is_best = config_.best_mode == "min";
  progress_.best_validation = least_is_best ? TrainingProgress::kNone : -TrainingProgress::kNone;
  progress_.best_saved = progress_.best_validation;
  progress_.best_values.clear();
  progress_.trained_s = 0;
  progress_.stopped.clear();
  progress_.train_losses.clear();
  progress_.val_losses.clear();
  trainer_.save_requested = false;
  trainer_.stop_reason.clear();
  for (const auto& callback : config_.callbacks) callback->reset();
  step_.begin_fit();
  const auto path = checkpoints_.resume(state_);
  const bool ended = path && path->parent_path() == folder_.checkpoints() && has_ended();
  if (ended) {
    // With checkpoint_best_only the last checkpoint is the best state, which may be older than the end.
    progress_.epochs_done = folder_.end()->epochs;
    progress_.result.iteration = folder_.end()->epochs;
    progress_.result.step = folder_.end()->steps;
    progress_.result.metrics = folder_.end()->metrics;
    progress_.stopped = folder_.end()->stopped;
  } else if (path) {
    checkpoints_.start_at(progress_.result.step);
  }
  folder_.describe(world_, config_, ended ? folder_.end() : std::nullopt);
  // Weights that were loaded without their average start a new one.
  if (path && trainer_.average && trainer_.average->updates() == 0) trainer_.make_average();
  if (path && world_.is_main() && config_.verbose) {
    fmt::print("Going on from {}: {} of {} epochs are done, {} steps\n", path->string(),
               progress_.epochs_done, config_.max_iter, progress_.result.step);
  }
  open_trackers(path.has_value());
  first_step_ = progress_.result.step;
}

bool FitLoop::has_ended() const {
  const std::optional<RunEnd>& end = folder_.end();
  return end && end->max_iter == config_.max_iter && end->max_steps == config_.max_steps &&
         end->max_time_s == config_.max_time_s && end->checkpoint_step == checkpoints_.last_step();
}

FitResult FitLoop::run() {
  // First, so that a signal during the load of a checkpoint does not end the process.
  preemption_.emplace(world_, signals_to_heed(checkpoints_.enabled() || trainer_.preemption_save));
  start_or_resume();
  announce();
  // Puts a model that was evaluated into training mode. In a model that is in training mode already,
  // modules that the user has put into evaluation mode, such as a batch norm, stay in it.
  if (!trainer_.model.module()->is_training()) trainer_.model.module()->train();
  trainer_.begin(Stage::kTrainStart, progress_.epochs_done);
  const bool is_fresh = progress_.epochs_done == 0 && first_step_ == 0;
  limits_.begin(progress_.trained_s);
  if (validates() && config_.val_at_start && is_fresh) validate();
  agree_to_stop();
  // A run that resumes at its end has nothing left to do.
  if (config_.max_steps > 0 && progress_.result.step >= config_.max_steps) progress_.stopped = "max_steps";
  if (config_.max_time_s > 0 &&
      comm::value_of_main_rank(world_.communicator(), progress_.trained_s >= config_.max_time_s) != 0) {
    progress_.stopped = "max_time_s";
  }
  start_ = Clock::now();
  while (progress_.epochs_done < config_.max_iter && !has_stopped()) train_epoch();
  return finish();
}

void FitLoop::train_epoch() {
  progress_.result.iteration = progress_.epochs_done + 1;
  progress_.result.first_batch = data_.batches_done();
  epoch_start_ = Clock::now();
  paused_ = {};
  trainer_.begin(Stage::kTrainEpochStart, progress_.result.iteration);
  data_.begin_epoch(progress_.epochs_done);
  trainer_.clock.take();
  step_log_.resume_clock(own_samples_);
  bar_.begin(position());
  while (train_step()) {
    look_at_limits();
    // The end of an epoch is also the end of a step, with more to save.
    if (has_another_step() && after_step()) return;
  }
  // Validation, writing and saving do not count as waiting for data.
  trainer_.clock.enter(base::Phase::kRunning);
  finish_epoch();
  if (preemption_->requested()) handle_preemption();
}

void FitLoop::look_at_limits() {
  const TimeLimits::Due due = limits_.after_step();
  save_by_time_ = due.save;
  if (due.stop) progress_.stopped = "max_time_s";
  if (config_.max_steps > 0 && progress_.result.step >= config_.max_steps) progress_.stopped = "max_steps";
}

bool FitLoop::has_another_step() const {
  return data_.batches_left() >= (step_.takes_full_windows() ? config_.accumulate_steps : 1);
}

bool FitLoop::train_step() {
  step_start_ = Clock::now();
  trace_.before(progress_.result.step + 1);
  trainer_.clock.enter(base::Phase::kData);
  batches_.clear();
  Batch batch;
  while (static_cast<int64_t>(batches_.size()) < config_.accumulate_steps && data_.next(batch)) {
    batches_.add(std::move(batch));
  }
  const int64_t samples = batches_.samples();
  const bool is_full = static_cast<int64_t>(batches_.size()) == config_.accumulate_steps;
  if (batches_.empty() || (step_.takes_full_windows() && !is_full)) return false;
  trainer_.begin(Stage::kTrainBatchStart, progress_.result.step + 1, batches_.on_device(0));
  watch_gradients();
  const bool logged = step_log_.due(progress_.result.step + 1);
  if (logged) step_.watch_gradient_norm();
  const LossResult outcome = step_.run(batches_);
  if (trainer_.average && step_.changed_weights()) {
    step_.finish_update();
    trainer_.average->update(progress_.result.step + 1);
  }
  ++progress_.result.step;
  base::Progress::of_process().set_step(progress_.result.step);
  if (trace_.recording()) trainer_.clock.enter(base::Phase::kRunning);  // ends the last phase
  trace_.after(progress_.result.step);
  sums_.add(outcome, samples);
  own_samples_ += static_cast<double>(samples);
  progress_.result.loss = outcome.loss.is_cpu() ? scalar_value(outcome.loss) : std::nan("");
  if (outcome.loss.is_cpu()) check_finite(progress_.result.loss);
  if (logged) log_step(outcome, samples);
  trainer_.end(Stage::kTrainBatchEnd, progress_.result.step, outcome);
  if (bar_.due()) show_progress(scalar_value(outcome.loss));
  stepping_ += Clock::now() - step_start_;
  return true;
}

void FitLoop::watch_gradients() {
  for (const auto& callback : config_.callbacks) {
    const auto monitoring = std::dynamic_pointer_cast<GradientMonitoring>(callback);
    if (!monitoring || monitoring->called_every() == 0) continue;
    if ((progress_.result.step + 1) % monitoring->called_every() != 0) continue;
    step_.watch_gradients(monitoring->has_histograms());
    if (monitoring->has_histograms()) return;
  }
}

void FitLoop::check_finite(double loss) const {
  if (step_.accepts_loss(loss)) return;
  throw ConfigError(
      "train", fmt::format("the loss is {} in epoch {}, step {} on rank {}: lower the learning rate, set "
                           "clip_grad_norm, or look at the data{}",
                           loss, progress_.result.iteration, progress_.result.step, world_.rank(),
                           checkpoints_.enabled() ? "; the checkpoints before it are kept" : ""));
}

bool FitLoop::after_step() {
  if (validation_due_after_step()) {
    const Clock::time_point before = Clock::now();
    trainer_.clock.enter(base::Phase::kRunning);
    validate();
    write_validation();
    paused_ += Clock::now() - before;
    step_log_.resume_clock(own_samples_);
  }
  if (has_stopped()) finish_part_of_epoch();
  if (checkpoints_.due_after_step(progress_.result.step) || save_by_time_) {
    save();
  } else {
    save_on_request();
  }
  if (preemption_->requested()) {
    handle_preemption();
    return true;
  }
  return has_stopped();
}

double FitLoop::record_training() {
  own_ = sums_.own();
  MetricSums::Means means = sums_.over(world_.communicator());
  if (step_.shares_samples()) means.samples /= world_.size();  // each rank counted all samples
  const double seconds = std::chrono::duration<double>(Clock::now() - epoch_start_ - paused_).count();
  epoch_samples_per_s_ = means.samples / seconds;
  samples_ += means.samples;
  Evaluation evaluation{.loss = means.values.at("loss"), .metrics = means.values};
  evaluation.metrics.erase("loss");
  trainer_.record("train", evaluation);
  check_finite(evaluation.loss);
  return means.samples;
}

void FitLoop::finish_part_of_epoch() {
  trainer_.clock.enter(base::Phase::kRunning);
  record_training();
  print_line(/*is_part=*/true);
  write_metrics(/*is_part=*/true);
}

void FitLoop::finish_epoch() {
  record_training();
  sums_.clear();
  progress_.train_losses.push_back(progress_.result.metrics.at("train_loss"));
  const int64_t epoch = ++progress_.epochs_done;
  data_.finish_epoch(epoch);
  trainer_.end(Stage::kTrainEpochEnd, epoch);
  const bool epoch_is_due = config_.val_every > 0 && epoch % config_.val_every == 0;
  if (epoch_is_due || validation_due_after_step()) validate();
  if (config_.trainstop_criterion && config_.trainstop_criterion(progress_.result)) {
    trainer_.stop_reason = "trainstop_criterion";
  }
  print_line();
  write_metrics();
  write_plots();
  agree_to_stop();
  if (checkpoints_.due_after_epoch(epoch) || checkpoints_.due_after_step(progress_.result.step) ||
      save_by_time_) {
    save();
  } else {
    save_on_request();
  }
}

void FitLoop::act(FitAction action) {
  switch (action) {
    case FitAction::kPrintMetrics: return print_metrics();
    case FitAction::kWriteMetrics: return write_now();
    case FitAction::kWritePlots: return draw_plots();
    case FitAction::kLogHyperparameters: return write_hyperparameters(progress_.result.metrics);
    case FitAction::kLogModel: return log_model();
    case FitAction::kSaveCheckpoint: trainer_.save_requested = true; return;
    case FitAction::kSaveBestCheckpoint: save_if_best_ = true; return;
  }
}

void FitLoop::agree_to_stop() {
  if (!comm::any_rank(world_.communicator(), !trainer_.stop_reason.empty())) return;
  progress_.stopped = trainer_.stop_reason.empty() ? "another rank asked for it" : trainer_.stop_reason;
}

void FitLoop::validate() {
  bar_.clear();
  step_log_.write(trainer_.trackers, /*all=*/true);
  std::optional<int64_t> limit = config_.max_val_batches;
  if (!limit && !data_.is_endless()) limit = config_.max_batches;
  trainer_.validate(validation_, /*also_sets=*/true, limit);
  validated_step_ = progress_.result.step;
  const double value = value_of_best_metric();
  // Without the second argument of fit() there is no val_loss.
  if (const auto loss = progress_.result.metrics.find("val_loss"); loss != progress_.result.metrics.end()) {
    progress_.val_losses.push_back(loss->second);
  }
  const bool is_new_best = is_better(value, progress_.best_validation);
  if (is_new_best) {
    progress_.best_validation = value;
    best_step_ = progress_.result.step;
  }
  const bool is_asked_for = std::exchange(save_if_best_, false) && is_new_best;
  if (config_.checkpoint_best_only && before_save_) finish_saves();
  const bool is_due = config_.checkpoint_best_only && (is_new_best || is_among_best(value));
  if ((is_due || is_asked_for) && progress_.result.step > 0) save();
}

double FitLoop::value_of_best_metric() const {
  // Without the second argument of fit() there is no val_loss: the first set decides.
  const bool is_usual = config_.best_metric == "val_loss" && validation_.empty();
  return trainer_.self.metric(is_usual ? fmt::format("val_{}_loss", trainer_.validation_sets.begin()->first)
                                       : config_.best_metric);
}

bool FitLoop::is_among_best(double value) const {
  if (!ranks_by_value() || !std::isfinite(value)) return false;
  const auto most = static_cast<size_t>(config_.checkpoint_keep_best);
  const std::vector<double>& values = progress_.best_values;
  if (values.size() < most) return true;
  return config_.best_mode == "max" ? value > values[most - 1] : value < values[most - 1];
}

// A NaN has no place in the order, and manifests have no infinities.
void FitLoop::add_best_value(double value) {
  if (!ranks_by_value() || !std::isfinite(value) || best_values_step_ == progress_.result.step) return;
  best_values_step_ = progress_.result.step;
  const double sign = config_.best_mode == "max" ? -1 : 1;
  std::vector<double>& values = progress_.best_values;
  const auto better = [sign](double a, double b) { return sign * a < sign * b; };
  values.insert(std::upper_bound(values.begin(), values.end(), value, better), value);
  const auto most = static_cast<size_t>(config_.checkpoint_keep_best);
  if (values.size() > most) values.resize(most);
}

void FitLoop::finish_saves() {
  const bool is_saved = checkpoints_.finish();
  const std::optional<BestSaved> before = std::exchange(before_save_, std::nullopt);
  if (is_saved || !before) return;
  progress_.best_saved = before->best;
  best_saved_step_ = before->best_step;
  progress_.best_values = before->values;
  best_values_step_ = before->values_step;
}

bool FitLoop::is_better(double value, double best) const {
  if (config_.validation_criterion) return config_.validation_criterion(value, best, config_.val_epsilon);
  return config_.best_mode == "max" ? value > best + config_.val_epsilon : value < best - config_.val_epsilon;
}

// The best state may not have been saved, because no save was due. The same criterion then finds the
// best one among the saved states.
bool FitLoop::is_best_saved(double value) {
  const int64_t step = progress_.result.step;
  if (best_saved_step_ == step) return true;  // the save is tried again
  if (best_step_ != step) {
    const bool best_is_saved = progress_.best_saved == progress_.best_validation;
    if (best_is_saved || !is_better(value, progress_.best_saved)) return false;
  }
  progress_.best_saved = value;
  best_saved_step_ = step;
  return true;
}

// On a GPU the loss of each step is not read. It is checked before weights that may be broken replace
// good ones on disk.
void FitLoop::check_epoch_so_far() const {
  if (world_.device().is_cpu()) return;
  const MetricSums::Means means = sums_.over(world_.communicator());
  const auto loss = means.values.find("loss");
  if (loss != means.values.end()) check_finite(loss->second);
}

// The loss of a step does not show whether its update was good. A training whose only checkpoint has
// broken weights is lost.
void FitLoop::check_weights() const {
  on_every_rank(world_.communicator(), [this] {
    const std::string name = first_broken(trained_weights(step_, trainer_.model));
    if (name.empty()) return;
    throw ConfigError(
        "train",
        fmt::format("the weights are not finite after step {} ({}), so they are not saved: lower the "
                    "learning rate, or set clip_grad_norm; the checkpoints before it are kept",
                    progress_.result.step, name));
  });
}

// A program may ask on one rank only; the other ranks would never start the save.
void FitLoop::save_on_request() {
  if (!trainer_.save_requested) return;
  world_.communicator().meet("save_checkpoint");
  save();
}

void FitLoop::save(bool wait, bool resumable) {
  trainer_.save_requested = false;
  if (!checkpoints_.enabled()) {
    throw ConfigError("train", "a checkpoint was asked for, and checkpoints are off: set checkpoint_every");
  }
  check_epoch_so_far();
  step_.finish_state();
  check_weights();
  // A validation of other weights does not apply to these.
  std::optional<double> metric;
  if (validated_step_ == progress_.result.step) metric = value_of_best_metric();
  if (before_save_) finish_saves();
  if (metric) {
    before_save_ =
        BestSaved{progress_.best_saved, best_saved_step_, progress_.best_values, best_values_step_};
    add_best_value(*metric);
  }
  const bool best = metric && is_best_saved(*metric);
  progress_.trained_s = limits_.trained_s();
  checkpoints_.save(state_, {.metric = metric, .best = best, .wait = wait, .resumable = resumable});
  limits_.saved();
  // A save takes the host's time, not the step's.
  step_log_.resume_clock(own_samples_);
}

void FitLoop::handle_preemption() {
  interrupted_ = true;
  step_log_.write(trainer_.trackers, /*all=*/true);
  const bool is_interrupt = preemption_->signal() == SIGINT;
  finish_saves();  // a save of this step that failed is tried again
  // With checkpoint_weights_only a save of this step is not enough: the training could not resume.
  if (checkpoints_.enabled() && !checkpoints_.saved_resumable(progress_.result.step)) {
    save(/*wait=*/true, /*resumable=*/true);
  }
  finish_saves();
  step_.finish_update();
  if (trainer_.preemption_save && !is_interrupt) trainer_.preemption_save();
  if (is_interrupt) return;
  bar_.clear();
  write_hyperparameters(progress_.result.metrics);
  if (trackers_) trackers_->close(RunStatus::kInterrupted);
  preemption_->leave();
}

void FitLoop::save_at_end() {
  if (!checkpoints_.enabled()) return;
  const int64_t step = progress_.result.step;
  const bool was_begun = checkpoints_.saved(step);
  finish_saves();
  // A failed save is tried once more, because no later one follows. That of Ctrl-C has everything.
  const bool saves_end = interrupted_ || !config_.checkpoint_best_only;
  const bool is_saved = interrupted_ ? checkpoints_.saved_resumable(step) : checkpoints_.saved(step);
  if (is_saved || !(was_begun || (saves_end && step > first_step_))) return;
  save(/*wait=*/false, /*resumable=*/interrupted_);
  finish_saves();
}

FitResult FitLoop::finish() {
  trace_.finish();
  bar_.clear();
  step_log_.write(trainer_.trackers, /*all=*/true);
  trainer_.end(Stage::kTrainEnd, progress_.epochs_done);
  trainer_.stage = Stage::kIdle;
  save_at_end();
  step_.finish_state();
  FitResult result;
  result.epochs = progress_.epochs_done;
  result.steps = progress_.result.step;
  result.metrics = progress_.result.metrics;
  const auto loss = result.metrics.find("train_loss");
  result.train_loss = loss != result.metrics.end() ? loss->second : std::nan("");
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  result.samples_per_s = samples_ / seconds;
  result.skipped_steps = step_.skipped_steps();
  result.stopped = interrupted_ ? "interrupted" : progress_.stopped;
  result.run_folder = folder_.path().string();
  finish_trackers();
  if (!interrupted_) {
    folder_.record_end(world_, {.epochs = result.epochs,
                                .steps = result.steps,
                                .max_iter = config_.max_iter,
                                .max_steps = config_.max_steps,
                                .max_time_s = config_.max_time_s,
                                .checkpoint_step = checkpoints_.last_step(),
                                .stopped = result.stopped,
                                .metrics = result.metrics});
  }
  preemption_.reset();
  print_summary(result, seconds);
  // Waits for rank 0, which may have been busy with trackers, so that all ranks continue together. An
  // upload of the model to MLflow may take longer than a collective waits, so the barrier gets a long
  // timeout; a rank that dies is noticed without it.
  world_.communicator().barrier(uploads_model(config_) ? Communicator::Timeout(std::chrono::hours(24))
                                                       : std::nullopt);
  return result;
}

}  // namespace lockstep::train
