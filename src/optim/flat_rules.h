#pragma once

#include <cmath>

#include "optim/flat_kernels.h"

// What one element goes through in a step. Numbers are prepared in double and rounded once,
// as LibTorch does; a std::fma is one because LibTorch's compiler made one there.
//
// Inlined always: the loops around them are compiled for several instruction sets.
namespace lockstep::optim {

enum class Decay : uint8_t { kNone, kGradient, kParameter };

template <Decay kDecay>
class AdamElement {
 public:
  static constexpr int kStates = 2;

  explicit AdamElement(const AdamRule& rule)
      : decay_(static_cast<float>(kDecay == Decay::kParameter ? 1 - rule.lr * rule.weight_decay
                                                              : rule.weight_decay)),
        weight_(static_cast<float>(1 - rule.beta1)),
        from_average_(std::abs(weight_) < 0.5F),
        beta2_(static_cast<float>(rule.beta2)),
        square_weight_(static_cast<float>(1 - rule.beta2)),
        root_(static_cast<float>(std::sqrt(1 - std::pow(rule.beta2, static_cast<double>(rule.step))))),
        eps_(static_cast<float>(rule.eps)),
        negative_step_(
            static_cast<float>(-(rule.lr / (1 - std::pow(rule.beta1, static_cast<double>(rule.step)))))) {
    if (!from_average_) weight_ -= 1;
  }

  [[gnu::always_inline]] inline void operator()(float& parameter, float gradient, float& average,
                                                float& square) const {
    if constexpr (kDecay == Decay::kGradient) gradient = std::fma(parameter, decay_, gradient);
    if constexpr (kDecay == Decay::kParameter) parameter *= decay_;
    // A lerp, from the end that is nearer.
    average = std::fma(weight_, gradient - average, from_average_ ? average : gradient);
    square = std::fma(square_weight_ * gradient, gradient, square * beta2_);
    const float denominator = std::sqrt(square) / root_ + eps_;
    parameter += negative_step_ * average / denominator;
  }

 private:
  float decay_;
  float weight_;
  bool from_average_;
  float beta2_;
  float square_weight_;
  float root_;
  float eps_;
  float negative_step_;
};

template <Decay kDecay>
class AdagradElement {
 public:
  static constexpr int kStates = 1;

  explicit AdagradElement(const AdagradRule& rule)
      : decay_(static_cast<float>(rule.weight_decay)),
        eps_(static_cast<float>(rule.eps)),
        negative_step_(
            static_cast<float>(-rule.lr / (1 + static_cast<double>(rule.step - 1) * rule.lr_decay))) {}

  [[gnu::always_inline]] inline void operator()(float& parameter, float gradient, float& sum, float&) const {
    if constexpr (kDecay != Decay::kNone) gradient = std::fma(parameter, decay_, gradient);
    sum = std::fma(gradient, gradient, sum);
    parameter = std::fma(gradient / (std::sqrt(sum) + eps_), negative_step_, parameter);
  }

 private:
  float decay_;
  float eps_;
  float negative_step_;
};

template <Decay kDecay>
class LionElement {
 public:
  static constexpr int kStates = 1;

  explicit LionElement(const LionRule& rule)
      : kept_(static_cast<float>(1 - rule.lr * rule.weight_decay)),
        beta1_(static_cast<float>(rule.beta1)),
        weight1_(static_cast<float>(1 - rule.beta1)),
        beta2_(static_cast<float>(rule.beta2)),
        weight2_(static_cast<float>(1 - rule.beta2)),
        lr_(static_cast<float>(rule.lr)) {}

  [[gnu::always_inline]] inline void operator()(float& parameter, float gradient, float& average,
                                                float&) const {
    const float update = std::fma(gradient, weight1_, average * beta1_);
    const float change = update > 0 ? -lr_ : (update < 0 ? lr_ : 0.0F);
    if constexpr (kDecay == Decay::kNone) {
      parameter += change;
    } else {
      parameter = std::fma(parameter, kept_, change);
    }
    average = std::fma(gradient, weight2_, average * beta2_);
  }

 private:
  float kept_;
  float beta1_;
  float weight1_;
  float beta2_;
  float weight2_;
  float lr_;
};

template <Decay kDecay, bool kMomentum>
class SgdElement {
 public:
  static constexpr int kStates = kMomentum ? 1 : 0;

  explicit SgdElement(const SgdRule& rule)
      : decay_(static_cast<float>(rule.weight_decay)),
        weight_(static_cast<float>(1 - rule.dampening)),
        begins_(rule.first_step),
        momentum_(static_cast<float>(rule.momentum)),
        nesterov_(rule.nesterov),
        negative_lr_(static_cast<float>(-rule.lr)) {}

  [[gnu::always_inline]] inline void operator()(float& parameter, float gradient, float& buffer,
                                                float&) const {
    if constexpr (kDecay != Decay::kNone) gradient = std::fma(parameter, decay_, gradient);
    if constexpr (kMomentum) {
      // The gradient, undampened, begins it.
      buffer = begins_ ? gradient : std::fma(gradient, weight_, buffer * momentum_);
      gradient = nesterov_ ? std::fma(buffer, momentum_, gradient) : buffer;
    }
    parameter = std::fma(gradient, negative_lr_, parameter);
  }

 private:
  float decay_;
  float weight_;
  bool begins_;
  float momentum_;
  bool nesterov_;
  float negative_lr_;
};

}  // namespace lockstep::optim
