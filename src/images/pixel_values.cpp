#include "images/pixel_values.h"

#include <fmt/format.h>
#include <lockstep/error.h>

#include <bit>
#include <cmath>
#include <type_traits>

#include "base/narrow_float.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compiled with -O3 -ffp-contract=off: the compiler vectorises the loops, and they must round exactly
// where PixelValues says.
namespace lockstep::images {
namespace {

PixelValues::Arithmetic arithmetic_of(float mean, float stddev) {
  const float high = 1.0F / stddev;
  return {mean, high, static_cast<float>(1.0 / static_cast<double>(stddev) - static_cast<double>(high))};
}

float compute(const PixelValues::Arithmetic& arithmetic, int byte) {
  const auto value = static_cast<float>(byte);
  const float x = std::fma(value, kInverse255High, value * kInverse255Low) - arithmetic.mean;
  return std::fma(x, arithmetic.inverse_high, x * arithmetic.inverse_low);
}

}  // namespace

PixelValues::PixelValues(const ImageTransform& transform, int channels) : type_(transform.type) {
  const size_t given = transform.mean.size();
  if (given > 1 && given != static_cast<size_t>(channels)) {
    throw ConfigError("images", fmt::format("the pictures have {} channel(s), mean and stddev are for {}",
                                            channels, given));
  }
  const bool is_half = type_ == ImageTransform::Type::kFloat16;
  for (int c = 0; c < channels; ++c) {
    const size_t i = given > 1 ? static_cast<size_t>(c) : 0;
    const float mean = given > 0 ? transform.mean[i] : 0.0F;
    const float stddev = given > 0 ? transform.stddev[i] : 1.0F;
    arithmetic_.push_back(arithmetic_of(mean, stddev));
    for (int byte = 0; byte < kBytes; ++byte) {
      const float value = (static_cast<float>(byte) / 255.0F - mean) / stddev;
      floats_.push_back(value);
      halves_.push_back(is_half ? base::narrow_to_half(value) : base::narrow_to_bfloat16(value));
      const float computed = compute(arithmetic_.back(), byte);
      is_arithmetic_ &= std::bit_cast<uint32_t>(computed) == std::bit_cast<uint32_t>(value);
    }
  }
}

namespace {

using Type = ImageTransform::Type;

// The channels of consecutive bytes: one channel, or all channels in turn.
struct Turn {
  const PixelValues* values;
  int first = 0;
  int channels = 1;
};

template <typename Element>
const Element* table_of(const PixelValues& values, int channel) {
  if constexpr (std::is_same_v<Element, float>) {
    return values.table(channel);
  } else {
    return values.table16(channel);
  }
}

template <typename Element>
void look_up(const Turn& turn, const uint8_t* bytes, size_t count, Element* out) {
  for (int c = 0; c < turn.channels; ++c) {
    const Element* table = table_of<Element>(*turn.values, turn.first + c);
    for (size_t i = static_cast<size_t>(c); i < count; i += static_cast<size_t>(turn.channels)) {
      out[i] = table[bytes[i]];
    }
  }
}

#if defined(__x86_64__)

// The numbers of PixelValues::Arithmetic for kBlock bytes in a row.
template <int kBlock>
struct Pattern {
  alignas(32) float mean[kBlock];
  alignas(32) float inverse_high[kBlock];
  alignas(32) float inverse_low[kBlock];

  explicit Pattern(const Turn& turn) {
    for (int i = 0; i < kBlock; ++i) {
      const PixelValues::Arithmetic& numbers = turn.values->arithmetic(turn.first + i % turn.channels);
      mean[i] = numbers.mean;
      inverse_high[i] = numbers.inverse_high;
      inverse_low[i] = numbers.inverse_low;
    }
  }
};

__attribute__((target("avx2,fma,f16c"), always_inline)) inline __m256 compute(const uint8_t* bytes,
                                                                              const float* mean,
                                                                              const float* high,
                                                                              const float* low) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  const __m256 byte = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(packed));
  const __m256 scaled = _mm256_fmadd_ps(byte, _mm256_set1_ps(kInverse255High),
                                        _mm256_mul_ps(byte, _mm256_set1_ps(kInverse255Low)));
  const __m256 x = _mm256_sub_ps(scaled, _mm256_load_ps(mean));
  return _mm256_fmadd_ps(x, _mm256_load_ps(high), _mm256_mul_ps(x, _mm256_load_ps(low)));
}

template <Type kType>
__attribute__((target("avx2,fma,f16c"), always_inline)) inline void store(__m256 values, void* out) {
  if constexpr (kType == Type::kFloat32) {
    _mm256_storeu_ps(static_cast<float*>(out), values);
  } else if constexpr (kType == Type::kFloat16) {
    _mm_storeu_si128(static_cast<__m128i*>(out), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  } else {
    // base::narrow_to_bfloat16 of eight numbers, none of them NaN.
    const __m256i bits = _mm256_castps_si256(values);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    const __m128i narrow = _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128(static_cast<__m128i*>(out), narrow);
  }
}

template <Type kType, int kChannels>
__attribute__((target("avx2,fma,f16c"))) size_t compute_blocks(const Turn& turn, const uint8_t* bytes,
                                                               size_t count, void* out) {
  constexpr int kLanes = 8;
  constexpr int kBlock = kLanes * (kChannels == 1 ? 4 : kChannels);
  constexpr size_t kElement = kType == Type::kFloat32 ? 4 : 2;
  const Pattern<kBlock> pattern(turn);
  size_t done = 0;
  for (; done + kBlock <= count; done += kBlock) {
    for (int i = 0; i < kBlock; i += kLanes) {
      const size_t place = done + static_cast<size_t>(i);
      const __m256 values =
          compute(bytes + place, pattern.mean + i, pattern.inverse_high + i, pattern.inverse_low + i);
      store<kType>(values, static_cast<char*>(out) + place * kElement);
    }
  }
  return done;
}

// Returns the number of elements written: all but the last few, or none if the tables are needed.
template <Type kType>
size_t compute_most(const Turn& turn, const uint8_t* bytes, size_t count, void* out) {
  // Every CPU with AVX2 has F16C too.
  static const bool wide = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (!wide || !turn.values->is_arithmetic()) return 0;
  if (turn.channels == 1) return compute_blocks<kType, 1>(turn, bytes, count, out);
  if (turn.channels == 3) return compute_blocks<kType, 3>(turn, bytes, count, out);
  return 0;
}

#else

template <Type kType>
size_t compute_most(const Turn&, const uint8_t*, size_t, void*) {
  return 0;
}

#endif

template <Type kType>
void convert_typed(const Turn& turn, const uint8_t* bytes, size_t count, void* out) {
  using Element = std::conditional_t<kType == Type::kFloat32, float, uint16_t>;
  const size_t done = compute_most<kType>(turn, bytes, count, out);  // whole turns
  look_up(turn, bytes + done, count - done, static_cast<Element*>(out) + done);
}

void convert(const Turn& turn, const uint8_t* bytes, size_t count, void* out) {
  switch (turn.values->type()) {
    case Type::kFloat32: return convert_typed<Type::kFloat32>(turn, bytes, count, out);
    case Type::kFloat16: return convert_typed<Type::kFloat16>(turn, bytes, count, out);
    default: return convert_typed<Type::kBFloat16>(turn, bytes, count, out);
  }
}

}  // namespace

void convert_channel(const PixelValues& values, int channel, const uint8_t* bytes, size_t count, void* out) {
  convert({&values, channel, 1}, bytes, count, out);
}

void convert_interleaved(const PixelValues& values, const uint8_t* bytes, size_t count, void* out) {
  convert({&values, 0, values.channels()}, bytes, count, out);
}

}  // namespace lockstep::images
