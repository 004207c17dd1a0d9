#include <lockstep/optim.h>

#include "optim/argument.h"
#include "optim/optimizers.h"

namespace lockstep {
namespace optim {
namespace {

torch::optim::AdamOptions adam_options(const AdamLbfgsOptions& options) {
  return torch::optim::AdamOptions(options.adam_lr).betas({options.adam_beta1, options.adam_beta2});
}

torch::optim::LBFGSOptions lbfgs_options(const AdamLbfgsOptions& options) {
  torch::optim::LBFGSOptions result(options.lbfgs_lr);
  result.max_iter(options.lbfgs_max_iter).history_size(options.lbfgs_history_size);
  if (options.strong_wolfe) result.line_search_fn("strong_wolfe");
  return result;
}

}  // namespace

AdamLbfgs::AdamLbfgs(const std::vector<at::Tensor>& parameters, const AdamLbfgsOptions& options)
    : Optimizer(parameters, std::make_unique<torch::optim::AdamOptions>(adam_options(options))),
      options_(options),
      adam_(parameters, adam_options(options)),
      lbfgs_(parameters, lbfgs_options(options)) {}

at::Tensor AdamLbfgs::step(LossClosure closure) {
  const auto& own = static_cast<const torch::optim::AdamOptions&>(param_groups_[0].options());
  if (!switched()) {
    static_cast<torch::optim::AdamOptions&>(adam_.param_groups()[0].options()) = own;
    at::Tensor loss = adam_.step(std::move(closure));
    ++steps_;
    return loss;
  }
  if (closure == nullptr) {
    throw ConfigError("optim",
                      fmt::format("from step {} on LBFGS evaluates the loss itself: give step() a closure",
                                  options_.switch_step));
  }
  lbfgs_.param_groups()[0].options().set_lr(options_.lbfgs_lr * (own.lr() / options_.adam_lr));
  at::Tensor loss = lbfgs_.step(std::move(closure));
  ++steps_;
  return loss;
}

// LibTorch cannot save an LBFGS that has taken a step: its scratch holds undefined tensors.
void AdamLbfgs::save(torch::serialize::OutputArchive&) const {
  throw ConfigError("optim", "AdamLbfgs is saved by lockstep::optimizer_state(), not by torch::save()");
}

void AdamLbfgs::load(torch::serialize::InputArchive&) {
  throw ConfigError("optim", "AdamLbfgs is loaded by lockstep::load_optimizer_state(), not by torch::load()");
}

}  // namespace optim

std::unique_ptr<torch::optim::Optimizer> make_adam_lbfgs(const std::vector<at::Tensor>& parameters,
                                                         const AdamLbfgsOptions& options) {
  constexpr auto kWhat = "the optimizer AdamLbfgs";
  optim::require_parameters(kWhat, parameters);
  optim::require_at_least(0, kWhat, "switch_step", options.switch_step);
  optim::require_positive(kWhat, "adam_lr", options.adam_lr);
  for (const auto& [name, beta] :
       {std::pair("adam_beta1", options.adam_beta1), {"adam_beta2", options.adam_beta2}}) {
    optim::require(beta >= 0 && beta < 1, kWhat, name, "at least 0 and below 1", beta);
  }
  optim::require_positive(kWhat, "lbfgs_lr", options.lbfgs_lr);
  optim::require_at_least(1, kWhat, "lbfgs_max_iter", options.lbfgs_max_iter);
  optim::require_at_least(1, kWhat, "lbfgs_history_size", options.lbfgs_history_size);
  return std::make_unique<optim::AdamLbfgs>(parameters, options);
}

}  // namespace lockstep
