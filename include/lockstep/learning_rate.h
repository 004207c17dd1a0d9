#pragma once

#include <lockstep/json.h>
#include <cstdint>
#include <memory>
#include <optional>
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

}  // namespace lockstep
