#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

inline constexpr int64_t kMaxPermutationSize = UINT32_MAX;

// The same values as torch.randperm(size) on the CPU with a new generator after manual_seed(seed)
// (PyTorch 2.11 to 2.15). 0 <= size <= kMaxPermutationSize.
std::vector<uint32_t> random_permutation(int64_t size, uint64_t seed);

}  // namespace lockstep::data
