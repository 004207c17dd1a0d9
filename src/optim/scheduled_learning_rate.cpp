#include <lockstep/learning_rate.h>
#include <torch/torch.h>

#include <lockstep/json.h>

#include "base/log.h"
#include "optim/argument.h"
#include "optim/lamb_optimizer.h"
#include "optim/lion_optimizer.h"
#include "optim/saved_state.h"

namespace lockstep {
namespace {

void check_groups(const torch::optim::Optimizer& optimizer, size_t rates) {
  const size_t groups = optimizer.param_groups().size();
  if (rates != groups) {
    throw ConfigError(
        "optim",
        fmt::format("one learning rate a parameter group is needed: {} rates for {} groups", rates, groups));
  }
}

template <typename Options>
bool change_betas(torch::optim::OptimizerOptions& options, double beta1, std::optional<double> beta2) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam == nullptr) return false;
  adam->betas({beta1, beta2.value_or(std::get<1>(adam->betas()))});
  return true;
}

// Without beta2: it stays. False: these options have no betas.
bool set_group_betas(torch::optim::OptimizerOptions& options, double beta1, std::optional<double> beta2) {
  return change_betas<torch::optim::AdamOptions>(options, beta1, beta2) ||
         change_betas<torch::optim::AdamWOptions>(options, beta1, beta2) ||
         change_betas<optim::LionGroupOptions>(options, beta1, beta2) ||
         change_betas<optim::LambGroupOptions>(options, beta1, beta2);
}

template <typename Options>
bool set_plain_momentum(torch::optim::OptimizerOptions& options, double momentum) {
  auto* plain = dynamic_cast<Options*>(&options);
  if (plain == nullptr) return false;
  plain->momentum(momentum);
  return true;
}

}  // namespace

std::vector<double> learning_rates(const torch::optim::Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

void set_learning_rates(torch::optim::Optimizer& optimizer, const std::vector<double>& rates) {
  check_groups(optimizer, rates.size());
  for (size_t i = 0; i < rates.size(); ++i) {
    if (!std::isfinite(rates[i]) || rates[i] < 0) {
      throw ConfigError(
          "optim",
          fmt::format("a learning rate is a number of at least 0: {} for parameter group {}", rates[i], i));
    }
  }
  for (size_t i = 0; i < rates.size(); ++i) optimizer.param_groups()[i].options().set_lr(rates[i]);
}

bool set_momentum(torch::optim::Optimizer& optimizer, double momentum) {
  bool all = true;
  for (auto& group : optimizer.param_groups()) {
    auto& options = group.options();
    all &= set_plain_momentum<torch::optim::SGDOptions>(options, momentum) ||
           set_plain_momentum<torch::optim::RMSpropOptions>(options, momentum) ||
           set_group_betas(options, momentum, std::nullopt);
  }
  return all;
}

bool set_betas(torch::optim::Optimizer& optimizer, double beta1, double beta2) {
  bool all = true;
  for (auto& group : optimizer.param_groups()) all &= set_group_betas(group.options(), beta1, beta2);
  return all;
}

ScheduledLearningRate::ScheduledLearningRate(torch::optim::Optimizer& optimizer,
                                             LearningRateSchedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)), base_lrs_(learning_rates(optimizer)) {
  set_step(0);
  const auto betas = schedule_.betas_at(0);
  if (betas && !set_betas(optimizer_, betas->first, betas->second)) {
    base::log_warning("optim", "the optimizer has no betas: the schedule leaves its momentum as it is: {}",
                      schedule_.to_json().dump());
  }
}

void ScheduledLearningRate::advance() { set_step(step_ + 1); }

void ScheduledLearningRate::set_step(int64_t step) {
  std::vector<double> rates;
  for (double base_lr : base_lrs_) rates.push_back(schedule_.at(step, base_lr));
  const auto momentum = schedule_.momentum_at(step);
  if (momentum && !set_momentum(optimizer_, *momentum)) {
    throw ConfigError("optim",
                      "the optimizer has no momentum that the schedule could move: set option "
                      "'cycle_momentum' to false: " +
                          schedule_.to_json().dump());
  }
  if (const auto betas = schedule_.betas_at(step)) set_betas(optimizer_, betas->first, betas->second);
  set_learning_rates(optimizer_, rates);
  step_ = step;
}

Json ScheduledLearningRate::state() const { return {{"step", step_}, {"base_lrs", base_lrs_}}; }

void ScheduledLearningRate::load_state(const Json& state) {
  std::vector<double> base_lrs;
  int64_t step = 0;
  optim::read_saved("the learning rate schedule", [&] {
    state.at("base_lrs").get_to(base_lrs);
    state.at("step").get_to(step);
  });
  check_groups(optimizer_, base_lrs.size());
  base_lrs_ = std::move(base_lrs);
  set_step(step);
}

}  // namespace lockstep
