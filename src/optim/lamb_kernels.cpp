#include "optim/lamb_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/narrow_float.h"

// Compiled as flat_kernels.cpp is.
namespace lockstep::optim {
namespace {

// Lanes of a sum, in an explicit order: the result is the same with every compiler.
constexpr size_t kLanes = 8;

struct Lanes {
  std::array<double, kLanes> sums{};
  double total() const {
    double result = 0;
    for (const double sum : sums) result += sum;
    return result;
  }
};

// The numbers of a rule as the elements use them.
struct Factors {
  float beta1, weight1, beta2, weight2, eps, decay;
  bool inside;

  explicit Factors(const LambRule& rule)
      : beta1(static_cast<float>(rule.beta1)),
        weight1(static_cast<float>(1 - rule.beta1)),
        beta2(static_cast<float>(rule.beta2)),
        weight2(static_cast<float>(1 - rule.beta2)),
        eps(static_cast<float>(rule.eps)),
        decay(static_cast<float>(rule.weight_decay)),
        inside(rule.eps_inside_sqrt) {}

  [[gnu::always_inline]] inline float update(float parameter, float average, float square) const {
    const float denominator = inside ? std::sqrt(square + eps) : std::sqrt(square) + eps;
    return average / denominator + decay * parameter;
  }
};

float gradient_at(const FlatMemory& memory, size_t i) {
  switch (memory.gradient_type) {
    case FlatType::kFloat: return static_cast<const float*>(memory.gradients)[i];
    case FlatType::kBFloat16: return base::widen_bfloat16(static_cast<const uint16_t*>(memory.gradients)[i]);
    case FlatType::kHalf: return base::widen_half(static_cast<const uint16_t*>(memory.gradients)[i]);
  }
  return 0;
}

void write_copy(const FlatMemory& memory) {
  if (memory.copy_type == FlatType::kFloat) {
    std::copy_n(memory.parameters, memory.numel, static_cast<float*>(memory.copy));
  } else if (memory.copy_type == FlatType::kHalf) {
    base::narrow_to_halves(memory.parameters, static_cast<uint16_t*>(memory.copy), memory.numel);
  } else {
    auto* bits = static_cast<uint16_t*>(memory.copy);
    for (size_t i = 0; i < memory.numel; ++i) bits[i] = base::narrow_to_bfloat16(memory.parameters[i]);
  }
}

LambSums sums_of(const Factors& factors, const FlatMemory& memory) {
  Lanes parameters;
  Lanes updates;
  for (size_t i = 0; i < memory.numel; ++i) {
    const float gradient = gradient_at(memory, i) * memory.gradient_factor;
    const float average = factors.beta1 * memory.state[i] + factors.weight1 * gradient;
    const float square = factors.beta2 * memory.second_state[i] + factors.weight2 * gradient * gradient;
    memory.state[i] = average;
    memory.second_state[i] = square;
    const double parameter = memory.parameters[i];
    const double update = factors.update(memory.parameters[i], average, square);
    parameters.sums[i % kLanes] += parameter * parameter;
    updates.sums[i % kLanes] += update * update;
  }
  return {parameters.total(), updates.total()};
}

}  // namespace

double lamb_step_size(const LambRule& rule) {
  if (!rule.bias_correction) return rule.lr;
  const auto step = static_cast<double>(rule.step);
  return rule.lr * std::sqrt(1 - std::pow(rule.beta2, step)) / (1 - std::pow(rule.beta1, step));
}

std::vector<LambSums> lamb_sums(const LambRule& rule, const FlatMemory& memory,
                                const std::vector<FlatSegment>& segments) {
  const Factors factors(rule);
  std::vector<LambSums> sums;
  sums.reserve(segments.size());
  for (const auto& [begin, end] : segments) sums.push_back(sums_of(factors, memory.part(begin, end - begin)));
  return sums;
}

double lamb_trust_ratio(const LambRule& rule, const LambSums& sums) {
  if (sums.parameter_squares == 0 || sums.update_squares == 0) return 1;
  const double ratio = std::sqrt(sums.parameter_squares) / std::sqrt(sums.update_squares);
  return std::clamp(ratio, rule.min_coeff, rule.max_coeff);
}

void lamb_apply(const LambRule& rule, const FlatMemory& memory, const std::vector<FlatSegment>& segments,
                const std::vector<double>& ratios) {
  const Factors factors(rule);
  const double step_size = lamb_step_size(rule);
  for (size_t segment = 0; segment < segments.size(); ++segment) {
    const FlatMemory part =
        memory.part(segments[segment].begin, segments[segment].end - segments[segment].begin);
    const auto size = static_cast<float>(step_size * ratios[segment]);
    for (size_t i = 0; i < part.numel; ++i) {
      float& parameter = part.parameters[i];
      parameter -= size * factors.update(parameter, part.state[i], part.second_state[i]);
    }
    if (part.copy != nullptr) write_copy(part);
  }
}

}  // namespace lockstep::optim
