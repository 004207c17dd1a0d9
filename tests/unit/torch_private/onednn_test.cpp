#include "torch_private/onednn.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

namespace lockstep::torch_private {
namespace {

TEST(OneDnnTest, AmxIsUndescribedWithoutItsPalette) {
  EXPECT_FALSE(amx_is_undescribed({.has_tiles = false, .highest_leaf = 0x16, .highest_palette = 0}));
  EXPECT_FALSE(amx_is_undescribed({.has_tiles = true, .highest_leaf = 0x1f, .highest_palette = 1}));
  EXPECT_TRUE(amx_is_undescribed({.has_tiles = true, .highest_leaf = 0x1c, .highest_palette = 0}));
  EXPECT_TRUE(amx_is_undescribed({.has_tiles = true, .highest_leaf = 0x1f, .highest_palette = 0}));
  // Beyond its highest leaf a CPU answers with another leaf's numbers.
  EXPECT_TRUE(amx_is_undescribed({.has_tiles = true, .highest_leaf = 0x1c, .highest_palette = 1}));
}

// Ends with SIGILL on a machine with undescribed AMX, unless tests/support/start_tests.cpp avoids it.
TEST(OneDnnTest, SixteenBitMatricesAreMultipliedHere) {
  const at::Tensor ones = torch::ones({64, 128}, torch::kBFloat16);
  EXPECT_TRUE(torch::linear(ones, ones).eq(128).all().item<bool>());
}

}  // namespace
}  // namespace lockstep::torch_private
