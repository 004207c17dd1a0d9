#include "images/arrange.h"

#include <cstring>

// Compiled with -O3. The vector extensions of the compilers become the shuffle instructions of each
// function's target machine.
namespace lockstep::images {
namespace {

constexpr int kBlock = 16;
using Block = uint8_t __attribute__((vector_size(kBlock)));

// The channels of kBlock pixels.
template <int kChannels>
struct Pixels {
  Block channel[kChannels];
};

[[gnu::always_inline]] inline Block load(const uint8_t* from) {
  Block block;
  std::memcpy(&block, from, kBlock);
  return block;
}

[[gnu::always_inline]] inline void store(uint8_t* to, Block block) { std::memcpy(to, &block, kBlock); }

[[gnu::always_inline]] inline Block reversed(Block b) {
  return __builtin_shufflevector(b, b, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

[[gnu::always_inline]] inline Pixels<3> split(const uint8_t* from) {
  const Block a = load(from);
  const Block b = load(from + 16);
  const Block c = load(from + 32);
  const Block red = __builtin_shufflevector(a, b, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
  const Block green = __builtin_shufflevector(a, b, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0);
  const Block blue = __builtin_shufflevector(a, b, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0);
  return {{__builtin_shufflevector(red, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29),
           __builtin_shufflevector(green, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30),
           __builtin_shufflevector(blue, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31)}};
}

[[gnu::always_inline]] inline void join(const Pixels<3>& pixels, uint8_t* to) {
  const Block r = pixels.channel[0];
  const Block g = pixels.channel[1];
  const Block b = pixels.channel[2];
  const Block first = __builtin_shufflevector(r, g, 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5);
  const Block middle = __builtin_shufflevector(r, g, 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26);
  const Block last = __builtin_shufflevector(r, g, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0);
  store(to, __builtin_shufflevector(first, b, 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15));
  store(to + 16, __builtin_shufflevector(middle, b, 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15));
  store(to + 32, __builtin_shufflevector(last, b, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31));
}

template <int kChannels, bool kInterleaved>
[[gnu::always_inline]] inline Pixels<kChannels> read(const PixelRun<const uint8_t>& source, int pixel) {
  if constexpr (kInterleaved) {
    return split(source.at + static_cast<ptrdiff_t>(pixel) * kChannels);
  } else {
    Pixels<kChannels> pixels;
    for (int c = 0; c < kChannels; ++c) pixels.channel[c] = load(source.at + c * source.channel_step + pixel);
    return pixels;
  }
}

template <int kChannels, bool kInterleaved>
[[gnu::always_inline]] inline void write(const Pixels<kChannels>& pixels, const PixelRun<uint8_t>& target,
                                         int pixel) {
  if constexpr (kInterleaved) {
    join(pixels, target.at + static_cast<ptrdiff_t>(pixel) * kChannels);
  } else {
    for (int c = 0; c < kChannels; ++c) store(target.at + c * target.channel_step + pixel, pixels.channel[c]);
  }
}

[[gnu::always_inline]] inline void copy_pixels_singly(const PixelRun<const uint8_t>& source,
                                                      const PixelRun<uint8_t>& target, int channels,
                                                      int pixels, bool flip) {
  for (int i = 0; i < pixels; ++i) {
    const uint8_t* from = source.at + (flip ? pixels - 1 - i : i) * source.pixel_step;
    uint8_t* to = target.at + i * target.pixel_step;
    for (int c = 0; c < channels; ++c) to[c * target.channel_step] = from[c * source.channel_step];
  }
}

template <int kChannels, bool kFromInterleaved, bool kToInterleaved, bool kFlip>
[[gnu::always_inline]] inline void arrange_rows(const PixelRows<const uint8_t>& source,
                                                const PixelRows<uint8_t>& target, int rows, int pixels) {
  for (int row = 0; row < rows; ++row) {
    PixelRun<const uint8_t> from = source.first;
    PixelRun<uint8_t> to = target.first;
    from.at += row * source.row_step;
    to.at += row * target.row_step;
    if (pixels < kBlock) {
      copy_pixels_singly(from, to, kChannels, pixels, kFlip);
      continue;
    }
    for (int i = 0; i < pixels; i += kBlock) {
      // The last block overlaps the one before, so that it ends with the row.
      const int place = i + kBlock <= pixels ? i : pixels - kBlock;
      auto block = read<kChannels, kFromInterleaved>(from, kFlip ? pixels - kBlock - place : place);
      if constexpr (kFlip) {
        for (Block& channel : block.channel) channel = reversed(channel);
      }
      write<kChannels, kToInterleaved>(block, to, place);
    }
  }
}

template <int kChannels, bool kFromInterleaved, bool kToInterleaved>
[[gnu::always_inline]] inline void arrange_rows(const PixelRows<const uint8_t>& source,
                                                const PixelRows<uint8_t>& target, int rows, int pixels,
                                                bool flip) {
  if (flip) {
    arrange_rows<kChannels, kFromInterleaved, kToInterleaved, true>(source, target, rows, pixels);
  } else {
    arrange_rows<kChannels, kFromInterleaved, kToInterleaved, false>(source, target, rows, pixels);
  }
}

[[gnu::always_inline]] inline void arrange_any(const PixelRows<const uint8_t>& source,
                                               const PixelRows<uint8_t>& target, int channels, int rows,
                                               int pixels, bool flip) {
  const bool from_planes = channels == 1 || source.first.pixel_step == 1;
  const bool to_planes = channels == 1 || target.first.pixel_step == 1;
  if (from_planes && to_planes) {
    for (int c = 0; c < channels; ++c) {
      PixelRows<const uint8_t> from = source;
      PixelRows<uint8_t> to = target;
      from.first.at += c * source.first.channel_step;
      to.first.at += c * target.first.channel_step;
      arrange_rows<1, false, false>(from, to, rows, pixels, flip);
    }
  } else if (!from_planes && !to_planes && !flip) {
    // The rows are copied unchanged.
    arrange_rows<1, false, false, false>({{source.first.at}, source.row_step},
                                         {{target.first.at}, target.row_step}, rows, pixels * channels);
  } else if (channels != 3) {
    for (int row = 0; row < rows; ++row) {
      PixelRun<const uint8_t> from = source.first;
      PixelRun<uint8_t> to = target.first;
      from.at += row * source.row_step;
      to.at += row * target.row_step;
      copy_pixels_singly(from, to, channels, pixels, flip);
    }
  } else if (from_planes) {
    arrange_rows<3, false, true>(source, target, rows, pixels, flip);
  } else if (to_planes) {
    arrange_rows<3, true, false>(source, target, rows, pixels, flip);
  } else {
    arrange_rows<3, true, true, true>(source, target, rows, pixels);
  }
}

}  // namespace

#if defined(__x86_64__)
namespace {

// The byte shuffles need instructions beyond the x86-64 baseline.
__attribute__((target("avx2"))) void arrange_wide(const PixelRows<const uint8_t>& source,
                                                  const PixelRows<uint8_t>& target, int channels, int rows,
                                                  int pixels, bool flip) {
  arrange_any(source, target, channels, rows, pixels, flip);
}

}  // namespace

void arrange(const PixelRows<const uint8_t>& source, const PixelRows<uint8_t>& target, int channels, int rows,
             int pixels, bool flip) {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  wide ? arrange_wide(source, target, channels, rows, pixels, flip)
       : arrange_any(source, target, channels, rows, pixels, flip);
}
#else
void arrange(const PixelRows<const uint8_t>& source, const PixelRows<uint8_t>& target, int channels, int rows,
             int pixels, bool flip) {
  arrange_any(source, target, channels, rows, pixels, flip);
}
#endif

}  // namespace lockstep::images
