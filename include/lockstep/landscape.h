#pragma once

// Estimates how steep a loss is, from its values at random parameters: the information content of the
// loss landscape bounds the average norm of the gradient (arXiv:2303.16893). For models whose parameters
// are angles, such as quantum circuits.
//
// Example:
//
//   const lockstep::Batch batch{.tensors = {x, y}};
//   const lockstep::InformationContent content(net, lockstep::mse, batch, torch::logspace(-3, 1, 20));
//   const lockstep::GradientBounds bounds = content.gradient_bounds();
//   std::printf("gradient norm: %g to %g\n", bounds.lower, bounds.upper);
//
// More: docs/trainer.md

#include <ATen/core/Tensor.h>
#include <lockstep/model.h>
#include <lockstep/trainer.h>

#include <cstdint>

namespace lockstep {

struct InformationContentOptions {
  // Points of the random walk for each parameter of the model.
  int64_t variation_multiple = 20;
  uint64_t seed = 0;
  // The walk itself, [points, parameters]. Undefined: uniform in [0, 2 pi).
  at::Tensor variations = {};
};

// Of the average norm of the gradient.
struct GradientBounds {
  double lower = 0;
  double upper = 0;
};

struct MaximalContent {
  double value = 0;
  double epsilon = 0;
};

// The information content of a loss for each threshold epsilon. The constructor evaluates the loss at
// every point of the walk, without gradients, and restores the parameters. Not collective: for several
// ranks give all of them the same batch and seed.
class InformationContent {
 public:
  // ConfigError: fewer than three points, no epsilons, or variations of another number of parameters.
  InformationContent(const Model& model, const Loss& loss, const Batch& batch, const at::Tensor& epsilons,
                     const InformationContentOptions& options = {});

  // For each epsilon, float32; at most 1.
  const at::Tensor& values() const { return values_; }
  MaximalContent maximum() const;
  // From the maximum. Warns if it is below log_6(2), where the bounds are not reliable.
  GradientBounds gradient_bounds() const;
  // The smallest epsilon whose content is below eta. ConfigError: there is none.
  double sensitivity(double eta) const;
  // The upper bound that follows from it.
  double sensitivity_bound(double eta) const;

 private:
  at::Tensor epsilons_;
  at::Tensor values_;
  int64_t parameters_ = 0;
};

// The three bounds of perceptrain's get_ic_grad_bounds(): lower and upper from the maximal content, and
// upper from the sensitivity eta.
struct IcGradBounds {
  double max_lower = 0;
  double max_upper = 0;
  double sensitivity_upper = 0;
};
IcGradBounds get_ic_grad_bounds(const InformationContent& content, double eta);

}  // namespace lockstep
