#pragma once

#include <cstdint>
#include <vector>

namespace lockstep::data {

inline constexpr int64_t kMaxPermutationSize = UINT32_MAX;

// torch.randperm(size) on the CPU with a generator freshly seeded by manual_seed(seed),
// value for value (PyTorch 2.11 to 2.15). 0 <= size <= kMaxPermutationSize.
std::vector<uint32_t> random_permutation(int64_t size, uint64_t seed);

}  // namespace lockstep::data
