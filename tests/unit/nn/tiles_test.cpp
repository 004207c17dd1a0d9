// The arithmetic of batch norm's launches, without a GPU.

#include "cuda/tiles.h"

#include <gtest/gtest.h>

namespace lockstep::cuda {
namespace {

// What a thread of this element loads at once, independently of the code under test.
int width_in_launch(Element element, int channels, bool is_aligned) {
  const int full = 16 / (element == Element::kFloat ? 4 : 2);
  return is_aligned && channels % full == 0 ? full : 1;
}

TEST(TilesOfBatchNorm, ThePartialSumsHoldThoseOfEveryBlock) {
  for (const Element element : {Element::kFloat, Element::kHalf, Element::kBFloat16}) {
    for (const bool is_aligned : {false, true}) {
      for (const int multiprocessors : {1, 7, 40, 108, 132, 148}) {
        for (const int64_t rows : {2, 31, 1000, 32 * 16 * 16, 1 << 20}) {
          for (int channels = 1; channels <= 1300; channels += channels < 100 ? 1 : 4) {
            const Pixels pixels{rows, channels, element, is_aligned, multiprocessors};
            const int width = width_in_launch(element, channels, is_aligned);
            for (int blocks = 1; blocks <= kMaxResidentBlocks; ++blocks) {
              const Tiles tiles = tiles_of(pixels, blocks);
              ASSERT_GE(tiles.groups * tiles.columns * width, channels) << "channels without a thread";
              ASSERT_LT((tiles.groups - 1) * tiles.columns * width, channels) << "a group without channels";
              ASSERT_LE(tiles.columns * tiles.rows, kThreadsOfNorm);
              // The last float of the last block.
              ASSERT_GE(partial_sums(pixels, 3), int64_t{tiles.chunks} * 3 * channels)
                  << channels << " channels, " << rows << " rows, " << multiprocessors << " multiprocessors, "
                  << blocks << " blocks of each";
            }
          }
        }
      }
    }
  }
}

// 320 channels of float32 are 80 vectors of 4. Vectors of 8 or single values need fewer blocks.
TEST(TilesOfBatchNorm, AreThoseOfFloat32InFours) {
  const Pixels pixels{.rows = 32 * 16 * 16,
                      .channels = 320,
                      .element = Element::kFloat,
                      .is_aligned = true,
                      .multiprocessors = 132};
  EXPECT_EQ(vector_width(Element::kFloat, 320, true), 4);
  const Tiles tiles = tiles_of(pixels, kMaxResidentBlocks);
  EXPECT_EQ(tiles.columns, 16);
  EXPECT_EQ(tiles.groups, 5);
  EXPECT_EQ(tiles.chunks, 128);  // all rows: 8192 / (16 * 4)
  EXPECT_EQ(partial_sums(pixels, 2), 128 * 2 * 320);
}

TEST(TilesOfBatchNorm, EveryGroupHasACounter) {
  for (const Element element : {Element::kFloat, Element::kHalf}) {
    for (int channels = 1; channels <= 32768; ++channels) {
      const Pixels pixels{1 << 20, channels, element, channels % 3 != 0, 132};
      ASSERT_LE(tiles_of(pixels, kMaxResidentBlocks).groups, kCounters) << channels;
    }
  }
}

}  // namespace
}  // namespace lockstep::cuda
