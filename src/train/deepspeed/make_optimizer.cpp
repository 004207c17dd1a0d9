#include "train/deepspeed/make_optimizer.h"

#include <lockstep/optim.h>
#include <torch/torch.h>

#include <algorithm>

#include "base/check.h"

namespace lockstep::deepspeed {
namespace {

using OptimizerConfig = DeepSpeedConfig::Optimizer;
using Parameters = std::vector<at::Tensor>;
using OptimizerPtr = std::unique_ptr<torch::optim::Optimizer>;

bool has_cpu_kernels(const Parameters& parameters) {
  return std::all_of(parameters.begin(), parameters.end(), [](const at::Tensor& parameter) {
    return parameter.is_cpu() && parameter.scalar_type() == at::kFloat;
  });
}

template <typename Class, typename Options>
OptimizerPtr make_torch_adam(const OptimizerConfig& config, const Parameters& parameters) {
  return std::make_unique<Class>(parameters, Options(config.lr)
                                                 .betas({config.betas[0], config.betas[1]})
                                                 .eps(config.eps)
                                                 .weight_decay(config.weight_decay)
                                                 .amsgrad(config.amsgrad));
}

OptimizerPtr make_adam(const OptimizerConfig& config, const Parameters& parameters) {
  // Also with torch_adam: they have the bits of torch's fused kernel, in a third of the time of
  // torch::optim's classes.
  if (!config.amsgrad && has_cpu_kernels(parameters)) {
    return make_cpu_adam(parameters, {.lr = config.lr,
                                      .beta1 = config.betas[0],
                                      .beta2 = config.betas[1],
                                      .eps = config.eps,
                                      .weight_decay = config.weight_decay,
                                      .adam_w_mode = config.decouples_weight_decay()});
  }
  using namespace torch::optim;  // NOLINT(google-build-using-namespace): names of one function
  return config.decouples_weight_decay() ? make_torch_adam<AdamW, AdamWOptions>(config, parameters)
                                         : make_torch_adam<Adam, AdamOptions>(config, parameters);
}

OptimizerPtr make_adagrad(const OptimizerConfig& config, const Parameters& parameters) {
  if (has_cpu_kernels(parameters)) {
    return make_cpu_adagrad(parameters, {.lr = config.lr,
                                         .eps = config.eps,
                                         .weight_decay = config.weight_decay,
                                         .lr_decay = config.lr_decay,
                                         .initial_accumulator_value = config.initial_accumulator_value});
  }
  return std::make_unique<torch::optim::Adagrad>(
      parameters, torch::optim::AdagradOptions(config.lr)
                      .lr_decay(config.lr_decay)
                      .weight_decay(config.weight_decay)
                      .initial_accumulator_value(config.initial_accumulator_value)
                      .eps(config.eps));
}

OptimizerPtr make_lamb(const OptimizerConfig& config, const Parameters& parameters) {
  return lockstep::make_lamb(parameters, {.lr = config.lr,
                                          .beta1 = config.betas[0],
                                          .beta2 = config.betas[1],
                                          .eps = config.eps,
                                          .weight_decay = config.weight_decay,
                                          .bias_correction = config.bias_correction,
                                          .eps_inside_sqrt = false,
                                          .max_coeff = config.max_coeff,
                                          .min_coeff = config.min_coeff});
}

OptimizerPtr make_sgd(const OptimizerConfig& config, const Parameters& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(config.lr)
                                                             .momentum(config.momentum)
                                                             .dampening(config.dampening)
                                                             .weight_decay(config.weight_decay)
                                                             .nesterov(config.nesterov));
}

OptimizerPtr make_rmsprop(const OptimizerConfig& config, const Parameters& parameters) {
  return std::make_unique<torch::optim::RMSprop>(parameters, torch::optim::RMSpropOptions(config.lr)
                                                                 .alpha(config.alpha)
                                                                 .eps(config.eps)
                                                                 .weight_decay(config.weight_decay)
                                                                 .momentum(config.momentum)
                                                                 .centered(config.centered));
}

OptimizerPtr make_lbfgs(const OptimizerConfig& config, const Parameters& parameters) {
  torch::optim::LBFGSOptions options(config.lr);
  options.max_iter(config.max_iter)
      .max_eval(config.max_eval)
      .tolerance_grad(config.tolerance_grad)
      .tolerance_change(config.tolerance_change)
      .history_size(config.history_size);
  if (config.line_search_fn) options.line_search_fn("strong_wolfe");
  return std::make_unique<torch::optim::LBFGS>(parameters, options);
}

}  // namespace

OptimizerPtr make_optimizer(const OptimizerConfig& config, const Parameters& parameters) {
  using Type = OptimizerConfig::Type;
  switch (config.type) {
    case Type::kAdam:
    case Type::kAdamW: return make_adam(config, parameters);
    case Type::kAdagrad: return make_adagrad(config, parameters);
    case Type::kLamb: return make_lamb(config, parameters);
    case Type::kLion:
      return make_lion(parameters, {.lr = config.lr,
                                    .beta1 = config.betas[0],
                                    .beta2 = config.betas[1],
                                    .weight_decay = config.weight_decay});
    case Type::kSgd: return make_sgd(config, parameters);
    case Type::kRmsprop: return make_rmsprop(config, parameters);
    case Type::kLbfgs: return make_lbfgs(config, parameters);
    case Type::kNone: break;
  }
  base::check(false, "a configuration without an optimizer makes none");
  return nullptr;
}

}  // namespace lockstep::deepspeed
