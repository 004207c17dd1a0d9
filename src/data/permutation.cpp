#include "data/permutation.h"

#include <numeric>
#include <random>
#include <utility>

#include "base/check.h"

namespace lockstep::data {
namespace {

// From this size on torch draws 64 bits a step, to stay close to uniform, and builds
// the permutation with the inside-out form of the shuffle.
constexpr int64_t kWideDrawSize = UINT32_MAX / 20;

void shuffle_forward(std::vector<uint32_t>& order, std::mt19937& engine) {
  std::iota(order.begin(), order.end(), 0U);
  for (size_t i = 0; i + 1 < order.size(); ++i) {
    const auto bound = static_cast<uint32_t>(order.size() - i);
    std::swap(order[i], order[i + static_cast<uint32_t>(engine()) % bound]);
  }
}

void shuffle_inside_out(std::vector<uint32_t>& order, std::mt19937& engine) {
  for (size_t i = 0; i < order.size(); ++i) {
    const uint64_t high = engine();
    const uint64_t low = engine();
    const size_t j = (high << 32 | low) % (i + 1);
    order[i] = order[j];
    order[j] = static_cast<uint32_t>(i);
  }
}

}  // namespace

std::vector<uint32_t> random_permutation(int64_t size, uint64_t seed) {
  base::check(size >= 0 && size <= kMaxPermutationSize, "size of a permutation");
  std::vector<uint32_t> order(static_cast<size_t>(size));
  // torch seeds the same engine with only the low half of the seed.
  std::mt19937 engine(static_cast<uint32_t>(seed));
  if (size < kWideDrawSize) {
    shuffle_forward(order, engine);
  } else {
    shuffle_inside_out(order, engine);
  }
  return order;
}

}  // namespace lockstep::data
