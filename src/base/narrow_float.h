#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace lockstep::base {

// Conversions between float32 and the bits of bfloat16 and float16 ("half"). They round to the nearest
// value, ties to even, as hardware and LibTorch do. They are inline, so that a loop over them is compiled
// for the instruction set of the function that has the loop.

[[gnu::always_inline]] inline uint16_t narrow_to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return static_cast<uint16_t>(value != value ? 0x7fc0 : rounded >> 16);
}

[[gnu::always_inline]] inline float widen_bfloat16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t narrow_to_half(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) {
    return static_cast<uint16_t>(sign | 0x7e00);
  }
  if (magnitude >= 0x477ff000) {  // rounds to infinity
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (magnitude < 0x38800000) {  // subnormal half
    // The addition rounds: it shifts the last bit of the half to the last bit of the float.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000));
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1) - 0x38000000;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

inline float widen_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude >= 0x7c00) {
    return std::bit_cast<float>(sign | 0x7f800000 | (magnitude << 13));
  }
  if (magnitude < 0x400) {
    const float value = static_cast<float>(magnitude) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000));
}

// Convert rows of `numel` elements, with the CPU's conversion instructions if it has them. The results
// are those of widen_half and narrow_to_half.
void widen_halves(const uint16_t* from, float* to, size_t numel);
void narrow_to_halves(const float* from, uint16_t* to, size_t numel);

}  // namespace lockstep::base
