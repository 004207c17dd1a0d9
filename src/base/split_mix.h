#pragma once

#include <cstdint>

namespace lockstep::base {

// The increment of the state in Steele, Lea and Flood's SplitMix64.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15U;

// SplitMix64's output for a state. Neighbouring states give unrelated numbers.
constexpr uint64_t split_mix(uint64_t state) {
  uint64_t x = state + kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace lockstep::base
