#pragma once

#include <cstdint>

namespace lockstep::base {

// What each step of Steele, Lea and Flood's SplitMix64 adds to its state.
inline constexpr uint64_t kSplitMixStep = 0x9e3779b97f4a7c15U;

// The number that SplitMix64 draws at this state: neighbouring states give unrelated ones.
constexpr uint64_t split_mix(uint64_t state) {
  uint64_t x = state + kSplitMixStep;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

}  // namespace lockstep::base
