#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <lockstep/error.h>
#include <lockstep/nn.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "nn/kernels.h"

namespace lockstep::nn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A block of the kernel steps through the classes with an int.
constexpr int64_t kMaxClasses = INT32_MAX / 2;

struct Problem {
  int64_t ignored;
  int64_t chunk;
  at::ScalarType type;  // of the matrix products
  // Which gradients backward needs.
  bool of_hidden;
  bool of_weight;
};

// The gradients of the sum of the losses, which forward computes while it has the scores; undefined unless
// they are needed. The caller divides by the number of rows that count: in float16 the quotient would be too
// small to store.
struct Losses {
  at::Tensor sum;
  at::Tensor count;
  at::Tensor hidden_gradient;
  at::Tensor weight_gradient;  // float32
};

Losses losses_of(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
                 const Problem& problem, const Kernels& kernels) {
  const at::NoGradGuard no_grad;
  const at::Tensor labels = targets.contiguous();
  const at::Tensor rows = hidden.to(problem.type).contiguous();
  const at::Tensor matrix = weight.to(problem.type);
  const bool is_narrow = problem.type != at::kFloat;
  Losses result;
  const at::Tensor losses = at::empty({rows.size(0)}, rows.options().dtype(at::kFloat));
  if (problem.of_hidden) result.hidden_gradient = at::empty_like(rows);
  if (problem.of_weight) {
    result.weight_gradient = at::zeros_like(weight, weight.options().dtype(at::kFloat));
  }
  for (int64_t first = 0; first < rows.size(0); first += problem.chunk) {
    const int64_t end = std::min(first + problem.chunk, rows.size(0));
    const at::Tensor part = rows.slice(0, first, end);
    at::Tensor scores = at::mm(part, matrix.t());
    kernels.cross_entropy(scores, labels.slice(0, first, end), problem.ignored, losses.slice(0, first, end),
                          problem.of_hidden || problem.of_weight);
    if (problem.of_hidden) {
      at::Tensor hidden_part = result.hidden_gradient.slice(0, first, end);
      at::mm_out(hidden_part, scores, matrix);
    }
    if (!problem.of_weight) continue;
    if (is_narrow) {
      at::addmm_out(result.weight_gradient, result.weight_gradient, scores.t(), part, at::kFloat);
    } else {
      result.weight_gradient.addmm_(scores.t(), part);
    }
  }
  result.sum = losses.sum();
  result.count = (targets != problem.ignored).sum();
  return result;
}

class FusedLinearCrossEntropy : public torch::autograd::Function<FusedLinearCrossEntropy> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& weight,
                            const at::Tensor& targets, const Problem& problem, const Kernels& kernels) {
    const Losses losses = losses_of(hidden, weight, targets, problem, kernels);
    context->set_materialize_grads(false);
    context->save_for_backward({losses.hidden_gradient, losses.weight_gradient, losses.count});
    context->saved_data["hidden"] = hidden.scalar_type();
    context->saved_data["weight"] = weight.scalar_type();
    return losses.sum / losses.count;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    refuse_second_derivative("linear_cross_entropy");
    const variable_list saved = context->get_saved_variables();
    variable_list result(5);
    if (!gradients[0].defined()) return result;
    // Without rows that count all gradients are 0, though the loss is NaN.
    const at::Tensor factor = gradients[0] / saved[2].clamp_min(1);
    const std::array<at::ScalarType, 2> types = {context->saved_data["hidden"].toScalarType(),
                                                 context->saved_data["weight"].toScalarType()};
    for (size_t i = 0; i < types.size(); ++i) {
      if (saved[i].defined() && context->needs_input_grad(i)) result[i] = scaled(saved[i], factor, types[i]);
    }
    return result;
  }
};

void check(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets,
           const LinearCrossEntropyOptions& options) {
  if (hidden.dim() != 2 || weight.dim() != 2 || targets.dim() != 1 || hidden.size(1) != weight.size(1) ||
      hidden.size(0) != targets.size(0)) {
    throw ConfigError(
        "nn", fmt::format(
                  "linear_cross_entropy: the shapes must be [rows, size], [classes, size] and [rows]: [{}], "
                  "[{}] and [{}]",
                  fmt::join(hidden.sizes(), ", "), fmt::join(weight.sizes(), ", "),
                  fmt::join(targets.sizes(), ", ")));
  }
  if (options.chunk_rows < 1) {
    throw ConfigError(
        "nn", fmt::format("linear_cross_entropy: chunk_rows must be at least 1: {}", options.chunk_rows));
  }
}

}  // namespace

torch::Tensor linear_cross_entropy(const torch::Tensor& hidden, const torch::Tensor& weight,
                                   const torch::Tensor& targets, const LinearCrossEntropyOptions& options) {
  check(hidden, weight, targets, options);
  const at::ScalarType type = type_of_products(hidden);
  const bool is_known = type == at::kFloat || type == at::kHalf || type == at::kBFloat16;
  // What does not fit together is left to LibTorch, whose errors name it.
  const bool fits = targets.scalar_type() == at::kLong && targets.device() == hidden.device() &&
                    weight.device() == hidden.device() && type_of_products(weight) == type;
  const Kernels* kernels =
      is_known && fits && hidden.numel() > 0 && weight.size(0) > 0 && weight.size(0) <= kMaxClasses
          ? kernels_on(hidden.device())
          : nullptr;
  if (kernels == nullptr) {
    return at::cross_entropy_loss(at::linear(hidden, weight), targets, /*weight=*/{}, at::Reduction::Mean,
                                  options.ignore_index);
  }
  const bool is_recorded = at::GradMode::is_enabled();
  const Problem problem{.ignored = options.ignore_index,
                        .chunk = options.chunk_rows,
                        .type = type,
                        .of_hidden = is_recorded && hidden.requires_grad(),
                        .of_weight = is_recorded && weight.requires_grad()};
  // The products below have their types already.
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastCUDA);
  if (problem.of_hidden || problem.of_weight) {
    return FusedLinearCrossEntropy::apply(hidden, weight, targets, problem, *kernels);
  }
  const Losses losses = losses_of(hidden, weight, targets, problem, *kernels);
  return losses.sum / losses.count;
}

}  // namespace lockstep::nn
