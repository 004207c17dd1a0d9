#include "optim/flat_kernels.h"

#include <algorithm>

#include "base/half_rows.h"
#include "base/narrow_float.h"
#include "optim/flat_rules.h"

// Compiled with -O3 -ffp-contract=off -fno-math-errno: which multiply-adds are fused is
// written out, and a square root is an instruction.
namespace lockstep::optim {
namespace {

// Elements that are converted at a time, so that they stay in the first level cache.
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

[[gnu::always_inline]] inline void run_adam(const AdamRule& rule, const FlatMemory& memory) {
  if (rule.weight_decay == 0) {
    run(AdamElement<Decay::kNone>(rule), memory);
  } else if (rule.decoupled_decay) {
    run(AdamElement<Decay::kParameter>(rule), memory);
  } else {
    run(AdamElement<Decay::kGradient>(rule), memory);
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

// Not std::visit: what it calls would not be inlined here.
[[gnu::always_inline]] inline void run_any(const FlatRule& rule, const FlatMemory& memory) {
  if (const auto* adam = std::get_if<AdamRule>(&rule)) {
    run_adam(*adam, memory);
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
