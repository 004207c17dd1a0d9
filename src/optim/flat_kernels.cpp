#include "optim/flat_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/narrow_float.h"

// Compiled with -O3 -ffp-contract=off -fno-math-errno: fused multiply-adds are only those written out,
// and a square root is one instruction.
namespace lockstep::optim {
namespace {

// The step of one element. Constants are computed in double and rounded once, as in LibTorch; a std::fma
// is where LibTorch's compiler made one.
//
// Always inlined: the loops around them are compiled for several instruction sets.

enum class Decay : uint8_t { kNone, kGradient, kParameter };

template <Decay kDecay, bool kTail>
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
    // A lerp from the nearer end.
    average = std::fma(weight_, gradient - average, from_average_ ? average : gradient);
    if constexpr (kTail) {
      square = std::fma(square, beta2_, square_weight_ * gradient * gradient);
    } else {
      square = std::fma(square_weight_ * gradient, gradient, square * beta2_);
    }
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
      // The first value is the gradient without dampening.
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

// Elements that are converted at a time: they fit into the first-level cache.
constexpr size_t kTile = 1024;

[[gnu::always_inline]] inline void widen(const void* from, FlatType type, float* to, size_t n) {
  const auto* bits = static_cast<const uint16_t*>(from);
  if (type == FlatType::kHalf) {
    base::widen_halves(bits, to, n);
  } else {
    for (size_t i = 0; i < n; ++i) to[i] = base::widen_bfloat16(bits[i]);
  }
}

[[gnu::always_inline]] inline void write_copy(const float* from, FlatType type, void* to, size_t n) {
  if (type == FlatType::kFloat) {
    std::copy_n(from, n, static_cast<float*>(to));
  } else if (type == FlatType::kHalf) {
    base::narrow_to_halves(from, static_cast<uint16_t*>(to), n);
  } else {
    auto* bits = static_cast<uint16_t*>(to);
    for (size_t i = 0; i < n; ++i) bits[i] = base::narrow_to_bfloat16(from[i]);
  }
}

template <typename Element>
[[gnu::always_inline]] inline void run_loop(const Element& element, const FlatMemory& memory,
                                            const float* __restrict gradients) {
  float* __restrict parameters = memory.parameters;
  float* __restrict first = memory.state;
  float* __restrict second = memory.second_state;
  const float factor = memory.gradient_factor;
  for (size_t i = 0; i < memory.numel; ++i) {
    float parameter = parameters[i];
    float a = Element::kStates > 0 ? first[i] : 0;
    float b = Element::kStates > 1 ? second[i] : 0;
    element(parameter, gradients[i] * factor, a, b);
    parameters[i] = parameter;
    if constexpr (Element::kStates > 0) first[i] = a;
    if constexpr (Element::kStates > 1) second[i] = b;
  }
}

template <typename Element>
[[gnu::always_inline]] inline void run(const Element element, const FlatMemory& memory) {
  const bool widens = memory.gradient_type != FlatType::kFloat;
  if (!widens && memory.copy == nullptr) {
    run_loop(element, memory, static_cast<const float*>(memory.gradients));
    return;
  }
  alignas(64) float wide[kTile];
  for (size_t begin = 0; begin < memory.numel; begin += kTile) {
    const FlatMemory tile = memory.part(begin, std::min(kTile, memory.numel - begin));
    if (widens) widen(tile.gradients, tile.gradient_type, wide, tile.numel);
    run_loop(element, tile, widens ? wide : static_cast<const float*>(tile.gradients));
    if (tile.copy != nullptr) write_copy(tile.parameters, tile.copy_type, tile.copy, tile.numel);
  }
}

template <bool kTail>
[[gnu::always_inline]] inline void run_adam(const AdamRule& rule, const FlatMemory& memory) {
  if (rule.weight_decay == 0) {
    run(AdamElement<Decay::kNone, kTail>(rule), memory);
  } else if (rule.decoupled_decay) {
    run(AdamElement<Decay::kParameter, kTail>(rule), memory);
  } else {
    run(AdamElement<Decay::kGradient, kTail>(rule), memory);
  }
}

[[gnu::always_inline]] inline void run_adagrad(const AdagradRule& rule, const FlatMemory& memory) {
  if (rule.weight_decay == 0) {
    run(AdagradElement<Decay::kNone>(rule), memory);
  } else {
    run(AdagradElement<Decay::kGradient>(rule), memory);
  }
}

[[gnu::always_inline]] inline void run_lion(const LionRule& rule, const FlatMemory& memory) {
  if (rule.weight_decay == 0) {
    run(LionElement<Decay::kNone>(rule), memory);
  } else {
    run(LionElement<Decay::kParameter>(rule), memory);
  }
}

[[gnu::always_inline]] inline void run_sgd(const SgdRule& rule, const FlatMemory& memory) {
  const bool momentum = rule.momentum != 0;
  if (rule.weight_decay == 0) {
    momentum ? run(SgdElement<Decay::kNone, true>(rule), memory)
             : run(SgdElement<Decay::kNone, false>(rule), memory);
  } else {
    momentum ? run(SgdElement<Decay::kGradient, true>(rule), memory)
             : run(SgdElement<Decay::kGradient, false>(rule), memory);
  }
}

// Not std::visit, whose calls would not be inlined.
[[gnu::always_inline]] inline void run_any(const FlatRule& rule, const FlatMemory& memory) {
  if (const auto* adam = std::get_if<AdamRule>(&rule)) {
    adam->tail ? run_adam<true>(*adam, memory) : run_adam<false>(*adam, memory);
  } else if (const auto* adagrad = std::get_if<AdagradRule>(&rule)) {
    run_adagrad(*adagrad, memory);
  } else if (const auto* lion = std::get_if<LionRule>(&rule)) {
    run_lion(*lion, memory);
  } else if (const auto* sgd = std::get_if<SgdRule>(&rule)) {
    run_sgd(*sgd, memory);
  }
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void run_avx2(const FlatRule& rule, const FlatMemory& memory) {
  run_any(rule, memory);
}

__attribute__((target("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl"))) void run_avx512(
    const FlatRule& rule, const FlatMemory& memory) {
  run_any(rule, memory);
}
#endif

}  // namespace

size_t size_of(FlatType type) { return type == FlatType::kFloat ? sizeof(float) : sizeof(uint16_t); }

FlatMemory FlatMemory::part(size_t first, size_t count) const {
  FlatMemory result = *this;
  result.numel = count;
  result.parameters += first;
  result.gradients = static_cast<const std::byte*>(gradients) + first * size_of(gradient_type);
  if (state != nullptr) result.state += first;
  if (second_state != nullptr) result.second_state += first;
  if (copy != nullptr) result.copy = static_cast<std::byte*>(copy) + first * size_of(copy_type);
  return result;
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") == 0 || __builtin_cpu_supports("fma") == 0) return sets;
  sets.push_back(InstructionSet::kAvx2);
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vl") != 0) {
    sets.push_back(InstructionSet::kAvx512);
  }
#endif
  return sets;
}

void step_range(const FlatRule& rule, const FlatMemory& memory, InstructionSet set) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return run_avx512(rule, memory);
  if (set == InstructionSet::kAvx2) return run_avx2(rule, memory);
#endif
  run_any(rule, memory);
}

void step_range(const FlatRule& rule, const FlatMemory& memory) {
  static const InstructionSet widest = instruction_sets().back();
  step_range(rule, memory, widest);
}

}  // namespace lockstep::optim
