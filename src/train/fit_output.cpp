// The output of a training: lines, progress bar, trackers.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/schedule.h>
#include <lockstep/sharded.h>
#include <lockstep/weights.h>
#include <torch/torch.h>

#include <lockstep/json.h>
#include <algorithm>
#include <cctype>
#include <cstdio>
#include <optional>
#include <sstream>
#include <utility>

#include "base/log.h"
#include "parallel/parallel_model.h"
#include "train/evaluator.h"
#include "train/fit_loop.h"
#include "train/model_graph.h"
#include "train/train_options.h"

namespace lockstep::train {
namespace {

// "Train_Loss" for "train_loss".
std::string title(std::string name) {
  bool first = true;
  for (char& letter : name) {
    if (first) letter = static_cast<char>(std::toupper(static_cast<unsigned char>(letter)));
    first = letter == '_';
  }
  return name;
}

std::vector<std::string> tracker_names(const TrainConfig& config) {
  std::vector<std::string> names = {"csv", "jsonl"};
  std::istringstream tools(config.tracking_tool);
  for (std::string name; std::getline(tools, name, ',');) {
    if (name != "none") names.push_back(name);
  }
  return names;
}

constexpr const char* kHyperparameters = "hyperparams";
// Longer values do not move the column of the defaults.
constexpr size_t kWidestValue = 32;

std::string shown_value(const Json& value) {
  if (value.is_null()) return "unset";
  if (!value.is_string()) return value.dump();
  const std::string text = value.get<std::string>();
  return text.empty() ? "''" : text;
}

}  // namespace

// A table of the options and hyperparameters that differ from the program's defaults.
void FitLoop::announce() const {
  if (!config_.verbose || !world_.is_main()) return;
  const Json own = Json::parse(config_.to_json());
  const Json usual = program_defaults(config_);
  struct Line {
    std::string name, value, rest;
  };
  std::vector<Line> lines;
  for (const std::string& name : own.names()) {
    const Json& value = own.at(name);
    if (name == kHyperparameters || value == usual.at(name)) continue;
    lines.push_back({name, shown_value(value), fmt::format("(default {})", shown_value(usual.at(name)))});
  }
  for (const auto& [name, value] : own.at(kHyperparameters).items()) {
    const Json* const before = usual.at(kHyperparameters).find(name);
    if (before != nullptr && *before == value) continue;
    const Json unset;
    lines.push_back({name, shown_value(value),
                     config_.program_defaults
                         ? fmt::format("(default {})", shown_value(before != nullptr ? *before : unset))
                         : ""});
  }
  fmt::print("Training on {} rank{} ({}){}\n", world_.size(), world_.size() == 1 ? "" : "s",
             world_.device().str(), lines.empty() ? ", default configuration" : "");
  size_t names = 0;
  size_t values = 0;
  for (const Line& line : lines) {
    names = std::max(names, line.name.size());
    if (!line.rest.empty()) values = std::max(values, std::min(line.value.size(), kWidestValue));
  }
  for (const Line& line : lines) {
    fmt::print("  {:{}}  {}\n", line.name, names,
               line.rest.empty() ? line.value : fmt::format("{:{}}  {}", line.value, values, line.rest));
  }
  std::fflush(stdout);
}

void FitLoop::open_trackers(bool resumed) {
  // A tracker that cannot be opened is an error on all ranks, because the user is still present.
  on_main_rank(world_.communicator(), [this, resumed] {
    TrackerOptions options;
    options.folder = folder_.path();
    options.run_name = folder_.path().filename().string();
    if (resumed) options.resume_step = progress_.result.step + 1;
    trackers_.emplace(TrackerSet::open(tracker_names(config_), options));
    return std::string();
  });
  if (!trackers_) return;
  trainer_.trackers = &*trackers_;
  // Written at the start, so that a run that is killed has them too.
  write_hyperparameters({});
  if (resumed) return;
  const torch::nn::Module& module = *trainer_.model.module();
  std::ostringstream model;
  model << module;
  trackers_->write_text("model", model.str(), 0);
  const ShardedModel* const sharded = step_.sharded();
  trackers_->write_graph(model_graph(module, sharded != nullptr ? sharded->shapes() : Shapes()));
}

std::map<std::string, double> FitLoop::shown_metrics(bool own) const {
  std::map<std::string, double> shown = progress_.result.metrics;
  if (own) {
    for (const auto& [name, value] : own_.values) shown["train_" + name] = value;
  }
  return shown;
}

void FitLoop::log_step(const LossResult& outcome, int64_t samples) {
  const torch::optim::Optimizer* const optimizer = step_.optimizer();
  // The row of the epoch has the same names for the same step.
  const bool epoch_follows = !has_another_step() && config_.write_every > 0 &&
                             (progress_.epochs_done + 1) % config_.write_every == 0;
  const at::Tensor norm = step_.gradient_norm();
  const int ranks = step_.shares_samples() ? 1 : world_.size();
  step_log_.add({.step = progress_.result.step,
                 .outcome = outcome,
                 .samples = samples,
                 .own_samples = own_samples_,
                 .ranks = ranks,
                 .gradient_norm = norm,
                 .learning_rate = optimizer != nullptr && world_.is_main()
                                      ? std::optional<double>(learning_rates(*optimizer).front())
                                      : std::nullopt,
                 .with_rates = !epoch_follows});
  step_log_.write(trainer_.trackers, /*all=*/false);
}

void FitLoop::write_validation() {
  if (!world_.is_main() || config_.write_every == 0) return;
  std::vector<Scalar> scalars;
  for (const auto& [name, value] : progress_.result.metrics) {
    if (name.starts_with("val_")) scalars.push_back({name, value});
  }
  trackers_->write_scalars(scalars, progress_.result.step);
}

void FitLoop::write_metrics(bool is_part) {
  step_log_.write(trainer_.trackers, /*all=*/true);
  if (!world_.is_main()) return;
  const StepClock::Split split = trainer_.clock.take();
  const std::chrono::nanoseconds waited = step_.parallel().exposed_wait();
  const double exposed_s = std::chrono::duration<double>(waited - waited_before_).count();
  waited_before_ = waited;
  if (config_.write_every == 0 || (!is_part && progress_.epochs_done % config_.write_every != 0)) return;
  const double part =
      is_part ? static_cast<double>(data_.batches_done()) / static_cast<double>(data_.num_batches()) : 0;
  std::vector<Scalar> scalars = {{"epoch", static_cast<double>(progress_.epochs_done) + part}};
  const std::map<std::string, double> shown = shown_metrics(/*own=*/!config_.all_reduce_metrics);
  for (const auto& [name, value] : shown) scalars.push_back({name, value});
  if (const torch::optim::Optimizer* const optimizer = step_.optimizer()) {
    scalars.push_back({"learning_rate", learning_rates(*optimizer).front()});
  }
  scalars.push_back({"samples_per_s", epoch_samples_per_s_});
  scalars.push_back({"time_data_s", split.data_s});
  scalars.push_back({"time_forward_s", split.forward_s});
  // Communication that did not overlap is part of the time of backward.
  scalars.push_back({"time_backward_s", split.backward_s - exposed_s});
  scalars.push_back({"time_exposed_communication_s", exposed_s});
  scalars.push_back({"time_optimizer_s", split.optimizer_s});
  if (step_.may_skip()) {
    scalars.push_back({"loss_scale", step_.loss_scale()});
    scalars.push_back({"skipped_steps", static_cast<double>(step_.skipped_steps())});
  }
  trackers_->write_scalars(scalars, progress_.result.step);
}

// The line of perceptrain, so that tools that read its output can read ours.
void FitLoop::print_line(bool is_part) {
  const int64_t epoch = progress_.epochs_done;
  if (config_.print_every > 0 && (is_part || epoch % config_.print_every == 0)) print_metrics(is_part);
}

void FitLoop::print_metrics(bool is_part) {
  if (!config_.verbose || !(world_.is_main() || config_.print_all_ranks)) return;
  bar_.clear();
  std::map<std::string, double> shown =
      shown_metrics(/*own=*/config_.print_all_ranks || !config_.all_reduce_metrics);
  std::string line = fmt::format("P {:>2}|{:<7}| Iteration {:>7}|", world_.rank(), world_.device().str(),
                                 progress_.epochs_done + (is_part ? 1 : 0));
  // The first of the metrics; before the first epoch there is none.
  if (const auto loss = shown.extract("train_loss")) {
    line += fmt::format(" Train_Loss: {:.7f} -", loss.mapped());
  }
  for (const auto& [name, value] : shown) line += fmt::format(" {}: {:.7f} -", title(name), value);
  fmt::print("{}\n", line);
  std::fflush(stdout);
}

void FitLoop::write_now() {
  step_log_.write(trainer_.trackers, /*all=*/true);
  if (!world_.is_main()) return;
  std::vector<Scalar> scalars = {{"epoch", static_cast<double>(progress_.epochs_done)}};
  const std::map<std::string, double> shown = shown_metrics(/*own=*/!config_.all_reduce_metrics);
  for (const auto& [name, value] : shown) scalars.push_back({name, value});
  if (const torch::optim::Optimizer* const optimizer = step_.optimizer()) {
    scalars.push_back({"learning_rate", learning_rates(*optimizer).front()});
  }
  trackers_->write_scalars(scalars, progress_.result.step);
}

void FitLoop::write_plots() {
  if (config_.plot_every != 0 && progress_.epochs_done % config_.plot_every == 0) draw_plots();
}

void FitLoop::draw_plots() {
  if (!world_.is_main()) return;
  const torch::NoGradGuard no_grad;
  step_.finish_update();
  const EvaluationMode mode(trainer_.model);
  for (const PlotFunction& plot : config_.plotting_functions) {
    const auto [name, image] = plot(trainer_.model, progress_.epochs_done);
    trackers_->write_image(name, image, progress_.result.step);
  }
}

ProgressState FitLoop::position() const {
  const int64_t steps_an_epoch = steps_of_epoch(data_, config_);
  int64_t epochs = config_.max_iter;
  if (config_.max_steps > 0 && steps_an_epoch > 0) {
    epochs = std::min(epochs, (config_.max_steps + steps_an_epoch - 1) / steps_an_epoch);
  }
  return {.epoch = progress_.result.iteration,
          .epochs = std::max(epochs, progress_.result.iteration),
          .batch = data_.batches_done(),
          .batches = data_.num_batches()};
}

void FitLoop::show_progress(double loss) {
  const std::chrono::duration<double> stepping = stepping_ + (Clock::now() - step_start_);
  const int64_t step = progress_.result.step;
  // Not steps * epochs: it may be more than an int64_t holds.
  const double all_steps =
      static_cast<double>(steps_of_epoch(data_, config_)) * static_cast<double>(config_.max_iter);
  const double last_step =
      config_.max_steps > 0 ? std::min(all_steps, static_cast<double>(config_.max_steps)) : all_steps;
  ProgressPace pace{
      .steps = step - first_step_, .steps_left = last_step - static_cast<double>(step), .stepping = stepping};
  if (config_.max_time_s > 0)
    pace.limit = std::chrono::duration<double>(config_.max_time_s - limits_.trained_s());
  const int ranks = step_.shares_samples() ? 1 : world_.size();
  ProgressState state = position();
  state.loss = loss;
  state.samples_per_s = own_samples_ * ranks / stepping.count();
  state.left = time_left(pace);
  bar_.show(std::move(state));
}

void FitLoop::print_summary(const FitResult& result, double seconds) const {
  if (!config_.verbose || !world_.is_main()) return;
  std::string remarks;
  if (!result.stopped.empty()) remarks += fmt::format("; stopped: {}", result.stopped);
  if (result.skipped_steps > 0) {
    remarks += fmt::format("; {} step{} left out where fp16 overflowed", result.skipped_steps,
                           result.skipped_steps == 1 ? " was" : "s were");
  }
  if (checkpoints_.failures() > 0) {
    remarks += fmt::format("; {} checkpoint{} not saved", checkpoints_.failures(),
                           checkpoints_.failures() == 1 ? " was" : "s were");
  }
  fmt::print("Trained {} epochs ({} steps) on {} rank{} in {:.2f} s: final loss {:.7f}{}\nRun folder: {}\n",
             result.epochs, result.steps, world_.size(), world_.size() == 1 ? "" : "s", seconds,
             result.train_loss, remarks, result.run_folder);
  std::fflush(stdout);
}

void FitLoop::write_hyperparameters(const FinalMetrics& metrics) {
  if (!trackers_ || config_.hyperparams.empty()) return;
  trackers_->write_hyperparameters(config_.hyperparams, metrics);
}

void FitLoop::log_model() {
  const auto hand_over = [this](const char* name, Weights which) {
    const auto file = folder_.path() / name;
    trainer_.self.save_weights(file.string(), which);
    if (world_.is_main()) trackers_->log_artifact(file);
  };
  try {
    hand_over("model.safetensors", Weights::kTrained);
    // The metrics are those of the average.
    if (trainer_.average) hand_over("model_average.safetensors", Weights::kAverage);
  } catch (const CommError&) {
    throw;
  } catch (const std::exception& error) {
    base::log_warning("train", "the model was not handed to the trackers: {}", error.what());
  }
}

void FitLoop::finish_trackers() {
  write_hyperparameters(progress_.result.metrics);
  if (config_.log_model) log_model();
  if (!world_.is_main()) return;
  trackers_->close(interrupted_ ? RunStatus::kInterrupted : RunStatus::kFinished);
  trainer_.trackers = nullptr;
}

}  // namespace lockstep::train
