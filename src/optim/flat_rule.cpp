#include "optim/flat_rule.h"

#include <torch/torch.h>

#include <tuple>

#include "optim/lion_optimizer.h"

namespace lockstep::optim {
namespace {

template <typename Options>
std::optional<FlatRule> adam_rule(const Options& options, int64_t step) {
  if (options.amsgrad()) return std::nullopt;
  AdamRule rule;
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  rule.decoupled_decay = std::is_same_v<Options, torch::optim::AdamWOptions>;
  rule.step = step;
  return rule;
}

AdagradRule adagrad_rule(const torch::optim::AdagradOptions& options, int64_t step) {
  AdagradRule rule;
  rule.lr = options.lr();
  rule.lr_decay = options.lr_decay();
  rule.eps = options.eps();
  rule.weight_decay = options.weight_decay();
  rule.step = step;
  return rule;
}

LionRule lion_rule(const LionGroupOptions& options) {
  LionRule rule;
  rule.lr = options.lr();
  std::tie(rule.beta1, rule.beta2) = options.betas();
  rule.weight_decay = options.weight_decay();
  return rule;
}

SgdRule sgd_rule(const torch::optim::SGDOptions& options, int64_t step) {
  SgdRule rule;
  rule.lr = options.lr();
  rule.momentum = options.momentum();
  rule.dampening = options.dampening();
  rule.weight_decay = options.weight_decay();
  rule.nesterov = options.nesterov();
  rule.first_step = step == 1;
  return rule;
}

}  // namespace

std::optional<FlatRule> flat_rule(const torch::optim::OptimizerOptions& options, int64_t step) {
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  if (const auto* adam = dynamic_cast<const AdamOptions*>(&options)) return adam_rule(*adam, step);
  if (const auto* adamw = dynamic_cast<const AdamWOptions*>(&options)) return adam_rule(*adamw, step);
  if (const auto* adagrad = dynamic_cast<const AdagradOptions*>(&options))
    return adagrad_rule(*adagrad, step);
  if (const auto* lion = dynamic_cast<const LionGroupOptions*>(&options)) return lion_rule(*lion);
  if (const auto* sgd = dynamic_cast<const SGDOptions*>(&options)) return sgd_rule(*sgd, step);
  return std::nullopt;
}

}  // namespace lockstep::optim
