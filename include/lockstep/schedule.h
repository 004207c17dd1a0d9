#pragma once

// Learning rates that change with the step or with a metric: the schedules of torch.optim.lr_scheduler
// and of DeepSpeed as functions, and classes that apply them to an optimizer. With the trainer use the
// callbacks ScheduleLearningRate and ReduceLearningRateOnPlateau (callbacks.h).
//
// Example:
//
//   lockstep::ScheduledLearningRate rate(optimizer, lockstep::step_decay({.every = 30, .gamma = 0.1}));
//   for (int epoch = 0; epoch < 90; ++epoch) {
//     // ... train one epoch ...
//     rate.advance();
//   }
//
// More: docs/optim.md

#include <lockstep/json.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace torch::optim {
class Optimizer;
}

namespace lockstep {

// A learning rate as a function of the step and of the initial rate of a parameter group. An immutable
// value; copies are cheap. Steps count from 0. The caller decides whether a step is a batch or an
// epoch.
//
// The functions below return the closed form of the class of torch.optim.lr_scheduler that their
// comment names. ConfigError names an argument that is not valid.
class LearningRateSchedule {
 public:
  class Impl;

  explicit LearningRateSchedule(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  // The rate at a step. ConfigError: the step is negative.
  double at(int64_t step, double base_lr) const;
  // The momentum (Adam: beta1) at a step, if the schedule changes it.
  std::optional<double> momentum_at(int64_t step) const;
  // Both betas at a step, if the schedule changes those of Adam and similar optimizers, and leaves
  // optimizers without betas unchanged: DeepSpeed's OneCycle.
  std::optional<std::pair<double, double>> betas_at(int64_t step) const;

  // For example {"kind": "step", "every": 30, "gamma": 0.1}. The names are those of the structs below;
  // missing ones have their defaults. ConfigError: an unknown kind or name.
  Json to_json() const;
  static LearningRateSchedule from_json(const Json& json);

 private:
  std::shared_ptr<const Impl> impl_;
};

// "constant": always the initial rate of the group.
LearningRateSchedule constant_rate();

// StepLR, "step": multiplied by gamma after every `every` steps.
struct StepDecay {
  int64_t every = 1;
  double gamma = 0.5;
};
LearningRateSchedule step_decay(const StepDecay& options);

// MultiStepLR, "multi_step": multiplied by gamma at each milestone; a milestone that is given twice
// counts twice.
struct MultiStepDecay {
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};
LearningRateSchedule multi_step_decay(const MultiStepDecay& options);

// ExponentialLR, "exponential": multiplied by gamma at every step.
struct ExponentialDecay {
  double gamma = 0.99;
};
LearningRateSchedule exponential_decay(const ExponentialDecay& options);

// PolynomialLR, "polynomial": down to 0 at total_steps.
struct PolynomialDecay {
  int64_t total_steps = 5;
  double power = 1;
};
LearningRateSchedule polynomial_decay(const PolynomialDecay& options);

// CyclicLR with mode "triangular" and constant momentum, "cyclic": up from base_lr to max_lr in
// step_size steps, and down again in step_size steps.
struct CyclicRate {
  std::optional<double> base_lr = {};  // nullopt: the group's initial rate
  double max_lr = 0.1;
  int64_t step_size = 2000;
};
LearningRateSchedule cyclic_rate(const CyclicRate& options);

// CosineAnnealingLR, "cosine": down to min_lr at t_max, and up again after that.
struct CosineAnnealing {
  int64_t t_max = 1;
  double min_lr = 0;
};
LearningRateSchedule cosine_annealing(const CosineAnnealing& options);

// CosineAnnealingWarmRestarts, "cosine_restarts": restarts at the initial rate after t_0 steps, then
// after t_0 * t_mult more, and so on.
struct CosineRestarts {
  int64_t t_0 = 1;
  int64_t t_mult = 1;
  double min_lr = 0;
};
LearningRateSchedule cosine_restarts(const CosineRestarts& options);

// OneCycleLR, "one_cycle": up from max_lr / div_factor to max_lr, and down to max_lr / div_factor /
// final_div_factor. Constant from total_steps on; PyTorch throws there.
struct OneCycle {
  enum class Anneal { kCosine, kLinear };  // "cosine", "linear"
  int64_t total_steps = 1;
  std::optional<double> max_lr = {};  // nullopt: the group's initial rate
  double pct_start = 0.3;             // fraction of the steps in which the rate increases
  Anneal anneal = Anneal::kCosine;
  bool cycle_momentum = true;  // opposite to the rate: down from max to base, and up
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;  // down symmetrically to up, then the rest to the end
};
LearningRateSchedule one_cycle(const OneCycle& options);

// "warm_up": LinearLR with end_factor 1, followed by `schedule`, which starts at its step 0 when the
// warm-up ends, as with SequentialLR.
struct WarmUp {
  int64_t steps = 1;
  double start_factor = 1.0 / 3;  // fraction of the first rate of `schedule`
};
LearningRateSchedule with_warm_up(const WarmUp& options, const LearningRateSchedule& schedule);

// One rate for each parameter group, in order. For all optimizers of torch::optim, and others whose
// options have get_lr and set_lr. ConfigError: wrong number of rates, or a rate that is negative or not
// finite.
std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer);
void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);
// Sets the momentum of SGD and RMSprop, or beta1 of Adam, AdamW, Lion and Lamb, in all groups. false:
// the optimizer has neither.
bool set_momentum(torch::optim::Optimizer& optimizer, double momentum);
// Sets the betas of Adam, AdamW, Lion and Lamb in all groups. false: the optimizer has no betas.
bool set_betas(torch::optim::Optimizer& optimizer, double beta1, double beta2);

// Applies a schedule to an optimizer: stores the initial rate of each group and counts steps. Keeps a
// reference to the optimizer. One thread at a time. No communication.
class ScheduledLearningRate {
 public:
  // Sets the rates of step 0. ConfigError: the schedule changes momentum, and the optimizer has none.
  ScheduledLearningRate(torch::optim::Optimizer& optimizer, LearningRateSchedule schedule);

  // Advances by one step, or sets the step, and sets the rate of every group.
  void advance();
  void set_step(int64_t step);
  int64_t step() const { return step_; }
  const LearningRateSchedule& schedule() const { return schedule_; }

  // Step and initial rates. The schedule itself is configuration: a run may resume with another one.
  // load_state() also sets the rates. ConfigError: another number of groups.
  Json state() const;
  void load_state(const Json& state);

 private:
  torch::optim::Optimizer& optimizer_;
  LearningRateSchedule schedule_;
  std::vector<double> base_lrs_;
  int64_t step_ = 0;
};

enum class MetricMode { kMin, kMax };  // "min", "max": which direction is better
enum class ThresholdMode { kRelative, kAbsolute };

// ReduceLROnPlateau of torch.optim.lr_scheduler with one difference: a relative threshold also works
// for a negative metric, where PyTorch counts a constant metric as an improvement and never reduces.
struct ReduceOnPlateauOptions {
  std::string monitor = "train_loss";  // name of the metric, for the caller of observe()
  int64_t patience = 20;               // misses that are tolerated; the next one reduces
  MetricMode mode = MetricMode::kMin;
  double gamma = 0.5;
  double threshold = 1e-4;  // an improvement must be larger, otherwise it is a miss
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  int64_t cooldown = 0;  // observations after a reduction whose misses do not count
  double min_lr = 1e-6;
  double eps = 1e-8;  // smaller changes of the rate are not made
};

// Multiplies the learning rate of every group by gamma when a metric stops improving. Keeps no
// reference to an optimizer. Every rank must observe the same value: reduce the metric first. One
// thread at a time. No communication.
class ReduceOnPlateau {
 public:
  // ConfigError names the option that is not valid.
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});

  // true: the rates were reduced. A NaN is a miss.
  bool observe(double metric, torch::optim::Optimizer& optimizer);
  // The same without an optimizer. true: the caller reduces the rates now.
  bool observe(double metric);
  // The value of a rate after a reduction.
  double reduced(double lr) const;

  std::optional<double> best() const { return best_; }
  int64_t misses() const { return misses_; }
  const ReduceOnPlateauOptions& options() const { return options_; }

  // The best value, the misses and the rest of the cooldown.
  Json state() const;
  void load_state(const Json& state);

 private:
  bool is_better(double metric) const;

  ReduceOnPlateauOptions options_;
  std::optional<double> best_;
  int64_t misses_ = 0;
  int64_t cooldown_left_ = 0;
};

// DeepSpeed's schedules, with its names and its arithmetic: at(step) is the rate that
// deepspeed.runtime.lr_schedules sets after that many calls of step(), to the bit. Their kinds in JSON
// are DeepSpeed's types, and the fields its parameters. Where DeepSpeed takes a list with one value for
// each parameter group, one value is for all groups here.
//
// A step is an optimizer step; a step that is skipped because of an overflow does not count.

// How the rate rises: by ln(step) / ln(steps), or linearly.
enum class WarmupType { kLog, kLinear };  // "log", "linear"

// "WarmupLR": up, then constant.
struct WarmupLr {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // nullopt: the group's initial rate
  int64_t warmup_num_steps = 1000;           // 1 counts as 2
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_lr(const WarmupLr& options);

// "WarmupDecayLR": up, then linearly down to warmup_min_lr at total_num_steps.
struct WarmupDecayLr {
  int64_t total_num_steps = 0;  // must be given
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_decay_lr(const WarmupDecayLr& options);

// "WarmupCosineLR": up, then down along a cosine until total_num_steps, all as ratios of the group's
// initial rate. The rate of the first step is always 0, independent of warmup_min_ratio.
struct WarmupCosineLr {
  int64_t total_num_steps = 0;  // must be given
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 0.0001;
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_cosine_lr(const WarmupCosineLr& options);

// "LRRangeTest": up without end.
struct LrRangeTest {
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};
LearningRateSchedule lr_range_test(const LrRangeTest& options);

// "OneCycle": up, down, then decay. With cycle_momentum beta1 moves opposite to the rate and beta2 is
// 0.99; an optimizer without betas keeps its momentum.
struct DeepSpeedOneCycle {
  std::optional<double> cycle_min_lr = {};  // both must be given
  std::optional<double> cycle_max_lr = {};
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};  // nullopt: the same as the first
  int64_t cycle_first_stair_count = 0;                 // 0: no stairs
  std::optional<int64_t> cycle_second_stair_count = {};
  int64_t decay_step_size = 0;  // 0: no decay
  bool cycle_momentum = true;
  double cycle_min_mom = 0.8;
  double cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};
LearningRateSchedule deepspeed_one_cycle(const DeepSpeedOneCycle& options);

}  // namespace lockstep
