#include "base/narrow_float.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <vector>

namespace lockstep::base {
namespace {

TEST(HalfRows, WidenEveryHalf) {
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(halves.size());
  widen_halves(halves.data(), wide.data(), halves.size());
  for (size_t i = 0; i < halves.size(); ++i) {
    const float expected = widen_half(halves[i]);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(wide[i])) << i;
    } else {
      EXPECT_EQ(std::bit_cast<uint32_t>(wide[i]), std::bit_cast<uint32_t>(expected)) << i;
    }
  }
}

// Values around every half, and rows of every length up to several vectors.
TEST(HalfRows, NarrowAsOneByOne) {
  std::vector<float> values;
  for (uint32_t half = 0; half < 0x7c00; half += 7) {
    const float value = widen_half(static_cast<uint16_t>(half));
    const float next = widen_half(static_cast<uint16_t>(half + 1));
    for (const float x : {value, (value + next) / 2, std::nextafter((value + next) / 2, 0.0F)}) {
      values.push_back(x);
      values.push_back(-x);
    }
  }
  std::vector<uint16_t> halves(values.size());
  narrow_to_halves(values.data(), halves.data(), values.size());
  for (size_t i = 0; i < values.size(); ++i) EXPECT_EQ(halves[i], narrow_to_half(values[i])) << values[i];
  for (size_t numel = 0; numel < 40; ++numel) {
    std::vector<uint16_t> part(numel + 1, 0x1234);
    narrow_to_halves(values.data() + 3, part.data(), numel);
    for (size_t i = 0; i < numel; ++i) EXPECT_EQ(part[i], narrow_to_half(values[i + 3]));
    EXPECT_EQ(part[numel], 0x1234) << "nothing is written after the end";
    std::vector<float> wide(numel + 1, 7);
    widen_halves(part.data(), wide.data(), numel);
    EXPECT_EQ(wide[numel], 7);
  }
}

}  // namespace
}  // namespace lockstep::base
