#include <map>

#include "deepspeed/key.h"

namespace lockstep::deepspeed {
namespace {

using C = DeepSpeedConfig;
using Optimizer = C::Optimizer;
using OptimizerType = Optimizer::Type;

template <typename... Types>
uint32_t of(Types... types) {
  return (type_bit(types) | ...);
}

constexpr Range kFraction = {.least = 0, .most = 1, .below = true};

}  // namespace

void add_optimizer_keys(std::vector<Key>& keys) {
  const auto get = [](auto& c) -> auto& { return c.optimizer; };
  const uint32_t adams = of(OptimizerType::kAdam, OptimizerType::kAdamW);
  const uint32_t with_betas = adams | of(OptimizerType::kLamb, OptimizerType::kLion);
  Section<Optimizer>(keys, "optimizer", get)
      .honour("type", &Optimizer::type,
              "its name, in large or small letters; without one the program brings its own")
      .fix("legacy_fusion", {"false"}, "the flat buffers are one fused call already");
  Section<Optimizer>(keys, "optimizer.params", get)
      .honour("lr", &Optimizer::lr, "learning rate", {.range = kNotNegative})
      .honour("betas", &Optimizer::betas, "decay of both moments", {.range = kFraction, .types = with_betas})
      .honour("eps", &Optimizer::eps, "added to the divisor",
              {.range = kNotNegative,
               .types = adams | of(OptimizerType::kLamb, OptimizerType::kAdagrad, OptimizerType::kRmsprop)})
      .honour("weight_decay", &Optimizer::weight_decay, "with torch_adam AdamW's default is 0.01",
              {.range = kNotNegative, .types = ~of(OptimizerType::kLbfgs)})
      .honour("adam_w_mode", &Optimizer::adam_w_mode, "false: Adam with weight decay in the gradient",
              {.types = adams})
      .honour("torch_adam", &Optimizer::torch_adam,
              "torch's arithmetic, that of its fused kernels on the CPU", {.types = adams})
      .honour("bias_correction", &Optimizer::bias_correction, "of the moments",
              {.types = adams | of(OptimizerType::kLamb)})
      .honour("amsgrad", &Optimizer::amsgrad, "with torch_adam only", {.types = adams})
      .fix("fp32_optimizer_states", {"true"}, "moments are fp32",
           {.types = adams | of(OptimizerType::kLion, OptimizerType::kAdagrad)})
      .honour("momentum", &Optimizer::momentum, "of the update",
              {.range = kNotNegative, .types = of(OptimizerType::kSgd, OptimizerType::kRmsprop)})
      .honour("dampening", &Optimizer::dampening, "of the momentum", {.types = of(OptimizerType::kSgd)})
      .honour("nesterov", &Optimizer::nesterov, "look ahead; needs momentum and no dampening",
              {.types = of(OptimizerType::kSgd)})
      .honour("alpha", &Optimizer::alpha, "decay of the squares",
              {.range = kFraction, .types = of(OptimizerType::kRmsprop)})
      .honour("centered", &Optimizer::centered, "divide by the variance",
              {.types = of(OptimizerType::kRmsprop)})
      .honour("lr_decay", &Optimizer::lr_decay, "of the learning rate",
              {.range = kNotNegative, .types = of(OptimizerType::kAdagrad)})
      .honour("initial_accumulator_value", &Optimizer::initial_accumulator_value, "of the sum of squares",
              {.range = kNotNegative, .types = of(OptimizerType::kAdagrad)})
      .honour("max_coeff", &Optimizer::max_coeff, "largest trust ratio",
              {.range = {.least = 0, .above = true}, .types = of(OptimizerType::kLamb)})
      .honour("min_coeff", &Optimizer::min_coeff, "least trust ratio",
              {.range = kNotNegative, .types = of(OptimizerType::kLamb)})
      .fix("eps_inside_sqrt", {"false"}, "eps is added to the root", {.types = of(OptimizerType::kLamb)})
      .honour("max_iter", &Optimizer::max_iter, "iterations of a step",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("max_eval", &Optimizer::max_eval, "evaluations of a step; null: 1.25 for each iteration",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("tolerance_grad", &Optimizer::tolerance_grad, "a smaller gradient ends the step",
              {.range = kNotNegative, .types = of(OptimizerType::kLbfgs)})
      .honour("tolerance_change", &Optimizer::tolerance_change, "a smaller change ends the step",
              {.range = kNotNegative, .types = of(OptimizerType::kLbfgs)})
      .honour("history_size", &Optimizer::history_size, "updates that are remembered",
              {.range = kAtLeastOne, .types = of(OptimizerType::kLbfgs)})
      .honour("line_search_fn", &Optimizer::line_search_fn, "strong_wolfe or null",
              {.types = of(OptimizerType::kLbfgs)})
      .refuse("max_grad_norm", {}, "clipping is no parameter of an optimizer: set gradient_clipping");
}

void set_type_defaults(Optimizer& optimizer) {
  if (optimizer.type == OptimizerType::kAdagrad) {
    optimizer.lr = 1e-2;
    optimizer.eps = 1e-10;
  } else if (optimizer.type == OptimizerType::kRmsprop) {
    optimizer.lr = 1e-2;
  } else if (optimizer.type == OptimizerType::kLbfgs) {
    optimizer.lr = 1;
  }
}

std::string refused_optimizer(const std::string& name) {
  static const char* const kOneBit = "it compresses gradients to bits, which changes the results";
  static const char* const kMup = "it needs widths that the Python package mup notes in the model";
  static const char* const kNotInLibTorch = "LibTorch has no such optimizer";
  static const std::map<std::string, const char*> reasons = {
      {"onebitadam", kOneBit},
      {"zerooneadam", kOneBit},
      {"onebitlamb", kOneBit},
      {"muadam", kMup},
      {"muadamw", kMup},
      {"musgd", kMup},
      {"muon", "it orthogonalises whole matrices, which a flat shard does not hold"},
      {"adadelta", kNotInLibTorch},
      {"adafactor", kNotInLibTorch},
      {"adamax", kNotInLibTorch},
      {"asgd", kNotInLibTorch},
      {"nadam", kNotInLibTorch},
      {"radam", kNotInLibTorch},
      {"rprop", kNotInLibTorch},
      {"sparseadam", kNotInLibTorch}};
  std::string small = name;
  for (char& c : small) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  const auto found = reasons.find(small);
  return found == reasons.end() ? "" : found->second;
}

}  // namespace lockstep::deepspeed
