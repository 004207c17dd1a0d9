#pragma once

// Learning rates that change from step to step or with a metric.
//
//   lockstep::ScheduledLearningRate rate(optimizer, lockstep::step_decay({.every = 30, .gamma = 0.1}));

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

// A learning rate as a function of the step and of the rate that a parameter group
// started with. An immutable value; copies share. Steps count from 0; what a step is
// (a batch, an epoch) is decided by whoever counts.
//
// Each is the closed form of the class of torch.optim.lr_scheduler named beside it.
// A bad argument is a ConfigError that names it.
class LearningRateSchedule {
 public:
  class Impl;

  explicit LearningRateSchedule(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

  // Throws ConfigError for a negative step.
  double at(int64_t step, double base_lr) const;
  // The momentum (Adam: beta1) of a step, for a schedule that moves it too.
  std::optional<double> momentum_at(int64_t step) const;
  // Both betas of a step, for a schedule that moves those of Adam and its relatives and
  // leaves an optimizer without betas alone: DeepSpeed's OneCycle.
  std::optional<std::pair<double, double>> betas_at(int64_t step) const;

  // {"kind": "step", "every": 30, "gamma": 0.1}: the names are those of the structs
  // below, what is left out has its default. An unknown kind or name is a ConfigError.
  Json to_json() const;
  static LearningRateSchedule from_json(const Json& json);

 private:
  std::shared_ptr<const Impl> impl_;
};

// The group's own rate, always. "constant"
LearningRateSchedule constant_rate();

// StepLR, "step": times gamma every so many steps.
struct StepDecay {
  int64_t every = 1;
  double gamma = 0.5;
};
LearningRateSchedule step_decay(const StepDecay& options);

// MultiStepLR, "multi_step": times gamma at each milestone; one given twice counts twice.
struct MultiStepDecay {
  std::vector<int64_t> milestones = {};
  double gamma = 0.1;
};
LearningRateSchedule multi_step_decay(const MultiStepDecay& options);

// ExponentialLR, "exponential": times gamma every step.
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

// CyclicLR with mode "triangular" and no cycling of momentum, "cyclic": from base_lr up
// to max_lr in step_size steps, and down again in as many.
struct CyclicRate {
  std::optional<double> base_lr = {};  // nullopt: the group's own
  double max_lr = 0.1;
  int64_t step_size = 2000;
};
LearningRateSchedule cyclic_rate(const CyclicRate& options);

// CosineAnnealingLR, "cosine": down to min_lr at t_max, and up again after it.
struct CosineAnnealing {
  int64_t t_max = 1;
  double min_lr = 0;
};
LearningRateSchedule cosine_annealing(const CosineAnnealing& options);

// CosineAnnealingWarmRestarts, "cosine_restarts": from the top again after t_0 steps,
// then after t_0 * t_mult more, and so on.
struct CosineRestarts {
  int64_t t_0 = 1;
  int64_t t_mult = 1;
  double min_lr = 0;
};
LearningRateSchedule cosine_restarts(const CosineRestarts& options);

// OneCycleLR, "one_cycle": from max_lr / div_factor up to max_lr, and down to
// max_lr / div_factor / final_div_factor. Stays there from total_steps on, where
// PyTorch's throws.
struct OneCycle {
  enum class Anneal { kCosine, kLinear };  // "cosine", "linear"
  int64_t total_steps = 1;
  std::optional<double> max_lr = {};  // nullopt: the group's own rate is the top
  double pct_start = 0.3;             // the share of the steps that go up
  Anneal anneal = Anneal::kCosine;
  bool cycle_momentum = true;  // the other way round: from max down to base and up
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25;
  double final_div_factor = 1e4;
  bool three_phase = false;  // down as symmetric as up, then the rest to the end
};
LearningRateSchedule one_cycle(const OneCycle& options);

// LinearLR with end_factor 1 and then `schedule`, which begins at its step 0 when the
// warm-up is over, as with SequentialLR: "warm_up".
struct WarmUp {
  int64_t steps = 1;
  double start_factor = 1.0 / 3;  // of the rate that `schedule` begins with
};
LearningRateSchedule with_warm_up(const WarmUp& options, const LearningRateSchedule& schedule);

// One rate a parameter group, in order. Work for every optimizer of torch::optim and
// every other whose options have get_lr and set_lr. ConfigError: wrong number of rates,
// or one that is negative or not finite.
std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer);
void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates);
// Momentum of SGD and RMSprop, beta1 of Adam, AdamW, Lion and Lamb, in all groups. False:
// this optimizer has neither.
bool set_momentum(torch::optim::Optimizer& optimizer, double momentum);
// Of Adam, AdamW, Lion and Lamb, in all groups. False: this optimizer has no betas.
bool set_betas(torch::optim::Optimizer& optimizer, double beta1, double beta2);

// A schedule at work on an optimizer: remembers the rate each group started with and
// counts steps. Keeps a reference to the optimizer. One thread at a time.
class ScheduledLearningRate {
 public:
  // Sets the rates of step 0. ConfigError: the schedule moves momentum and the
  // optimizer has none.
  ScheduledLearningRate(torch::optim::Optimizer& optimizer, LearningRateSchedule schedule);

  // Goes on by one step, or to a given one, and sets every group's rate.
  void advance();
  void set_step(int64_t step);
  int64_t step() const { return step_; }
  const LearningRateSchedule& schedule() const { return schedule_; }

  // Step and base rates. The schedule itself is configuration: a run may go on with
  // another one. load_state sets the rates too. ConfigError: another number of groups.
  Json state() const;
  void load_state(const Json& state);

 private:
  torch::optim::Optimizer& optimizer_;
  LearningRateSchedule schedule_;
  std::vector<double> base_lrs_;
  int64_t step_ = 0;
};

enum class MetricMode { kMin, kMax };  // "min", "max": which way is better
enum class ThresholdMode { kRelative, kAbsolute };

// ReduceLROnPlateau of torch.optim.lr_scheduler, apart from one thing: a relative
// threshold also works for a metric below 0, where PyTorch's takes a standstill for an
// improvement and never reduces.
struct ReduceOnPlateauOptions {
  std::string monitor = "train_loss";  // for whoever looks the metric up
  int64_t patience = 20;               // misses that are let pass; the next one reduces
  MetricMode mode = MetricMode::kMin;
  double gamma = 0.5;
  double threshold = 1e-4;  // a smaller improvement is a miss
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  int64_t cooldown = 0;  // observations after a reduction in which misses do not count
  double min_lr = 1e-6;
  double eps = 1e-8;  // a smaller change of the rate is not made
};

// Multiplies every group's learning rate by gamma when a metric stops improving.
// Keeps no reference to an optimizer. Every rank must observe the same value: reduce
// the metric first. One thread at a time.
class ReduceOnPlateau {
 public:
  // ConfigError names the option that makes no sense.
  explicit ReduceOnPlateau(const ReduceOnPlateauOptions& options = {});

  // True: the rates were due to be reduced, and are. A NaN is a miss.
  bool observe(double metric, torch::optim::Optimizer& optimizer);
  // The same without an optimizer: true when the rates are to be reduced now.
  bool observe(double metric);
  // What a rate becomes in a reduction.
  double reduced(double lr) const;

  std::optional<double> best() const { return best_; }
  int64_t misses() const { return misses_; }
  const ReduceOnPlateauOptions& options() const { return options_; }

  Json state() const;
  void load_state(const Json& state);

 private:
  bool is_better(double metric) const;

  ReduceOnPlateauOptions options_;
  std::optional<double> best_;
  int64_t misses_ = 0;
  int64_t cooldown_left_ = 0;
};

// DeepSpeed's schedules, by its names and with its arithmetic: what
// deepspeed.runtime.lr_schedules sets after so many of its step() is at(step), to the bit.
// Their kinds in JSON are DeepSpeed's types, and the fields its parameters; where DeepSpeed
// takes a list with one value a parameter group, one value serves all groups here.
//
// A step is an optimizer step; one that is skipped because of an overflow does not count.

// How a rate rises to its top: by ln(step) / ln(steps), or in even steps.
enum class WarmupType { kLog, kLinear };  // "log", "linear"

// "WarmupLR": up, then constant.
struct WarmupLr {
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr = {};  // nullopt: the group's own rate
  int64_t warmup_num_steps = 1000;           // 1 counts as 2
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_lr(const WarmupLr& options);

// "WarmupDecayLR": up, then in even steps down to warmup_min_lr at total_num_steps.
struct WarmupDecayLr {
  int64_t total_num_steps = 0;  // must be given
  double warmup_min_lr = 0;
  double warmup_max_lr = 0.001;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};
LearningRateSchedule warmup_decay_lr(const WarmupDecayLr& options);

// "WarmupCosineLR": up, then down a cosine until total_num_steps, all as ratios of the group's
// own rate. The rate of the very first step is 0, whatever warmup_min_ratio says.
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

// "OneCycle": up, down, then decay. With cycle_momentum beta1 goes the other way round and
// beta2 is 0.99; an optimizer without betas keeps its momentum.
struct DeepSpeedOneCycle {
  std::optional<double> cycle_min_lr = {};  // both must be given
  std::optional<double> cycle_max_lr = {};
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};  // nullopt: as the first
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
