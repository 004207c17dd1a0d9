#include <lockstep/learning_rate.h>
#include <torch/torch.h>

#include <nlohmann/json.hpp>

#include "optim/argument.h"
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
bool set_beta1(torch::optim::OptimizerOptions& options, double momentum) {
  auto* adam = dynamic_cast<Options*>(&options);
  if (adam == nullptr) return false;
  adam->betas({momentum, std::get<1>(adam->betas())});
  return true;
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
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): four names of one function
  bool all = true;
  for (auto& group : optimizer.param_groups()) {
    auto& options = group.options();
    all &= set_plain_momentum<SGDOptions>(options, momentum) ||
           set_plain_momentum<RMSpropOptions>(options, momentum) ||
           set_beta1<AdamOptions>(options, momentum) || set_beta1<AdamWOptions>(options, momentum);
  }
  return all;
}

ScheduledLearningRate::ScheduledLearningRate(torch::optim::Optimizer& optimizer,
                                             LearningRateSchedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)), base_lrs_(learning_rates(optimizer)) {
  set_step(0);
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
  set_learning_rates(optimizer_, rates);
  step_ = step;
}

nlohmann::json ScheduledLearningRate::state() const { return {{"step", step_}, {"base_lrs", base_lrs_}}; }

void ScheduledLearningRate::load_state(const nlohmann::json& state) {
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
