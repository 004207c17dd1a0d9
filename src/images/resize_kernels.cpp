#include "images/resize_kernels.h"

#include <algorithm>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compiled with -O3: the loops for any machine are meant for the vectoriser.
namespace lockstep::images {
namespace {

constexpr int kPrecision = ResizeWeights::kPrecision;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

// Bytes of a row that are summed up at a time.
constexpr int kBlock = 4 * kLanes;

uint8_t to_byte(int32_t sum) { return static_cast<uint8_t>(std::min(sum >> kPrecision, 255)); }

void columns_anywhere(const ResizeWeights& columns, int first, int left, int right, const uint8_t* lanes,
                      uint8_t* out) {
  for (int x = left; x < right; ++x, out += kLanes) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    const uint8_t* in = lanes + static_cast<ptrdiff_t>(kLanes) * (taps.first - first);
    int32_t sums[kLanes];
    for (int32_t& sum : sums) sum = kHalf;
    for (int k = 0; k < taps.count; ++k, in += kLanes) {
      for (int i = 0; i < kLanes; ++i) sums[i] += weights[k] * in[i];
    }
    for (int i = 0; i < kLanes; ++i) out[i] = to_byte(sums[i]);
  }
}

// Elements [from, to) of a row.
void row_anywhere(const int32_t* weights, int taps, const uint8_t* in, int step, int from, int to,
                  uint8_t* out) {
  for (int i = from; i < to; ++i) {
    int32_t sum = kHalf;
    for (int k = 0; k < taps; ++k) sum += weights[k] * in[static_cast<ptrdiff_t>(k) * step + i];
    out[i] = to_byte(sum);
  }
}

#if defined(__x86_64__)

__attribute__((target("avx2"), always_inline)) inline __m256i weighted(const uint8_t* bytes, int32_t weight) {
  const __m128i packed = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes));
  return _mm256_mullo_epi32(_mm256_cvtepu8_epi32(packed), _mm256_set1_epi32(weight));
}

__attribute__((target("avx2"), always_inline)) inline void store(__m256i sums, uint8_t* out) {
  const __m256i shifted = _mm256_srli_epi32(sums, kPrecision);
  const __m128i words =
      _mm_packus_epi32(_mm256_castsi256_si128(shifted), _mm256_extracti128_si256(shifted, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

__attribute__((target("avx2"))) void columns_wide(const ResizeWeights& columns, int first, int left,
                                                  int right, const uint8_t* lanes, uint8_t* out) {
  for (int x = left; x < right; ++x, out += kLanes) {
    const ResizeWeights::Taps& taps = columns.taps[static_cast<size_t>(x)];
    const int32_t* weights = &columns.weights[taps.weights];
    const uint8_t* in = lanes + static_cast<ptrdiff_t>(kLanes) * (taps.first - first);
    __m256i sums = _mm256_set1_epi32(kHalf);
    for (int k = 0; k < taps.count; ++k) sums = _mm256_add_epi32(sums, weighted(in + kLanes * k, weights[k]));
    store(sums, out);
  }
}

__attribute__((target("avx2"))) void row_wide(const int32_t* weights, int taps, const uint8_t* in, int step,
                                              int count, uint8_t* out) {
  for (int i = 0; i < count; i += kBlock) {
    // The last block begins where it still fits, and computes some bytes again.
    const int place = std::min(i, count - kBlock);
    const uint8_t* row = in + place;
    __m256i a = _mm256_set1_epi32(kHalf);
    __m256i b = a;
    __m256i c = a;
    __m256i d = a;
    for (int k = 0; k < taps; ++k, row += step) {
      a = _mm256_add_epi32(a, weighted(row, weights[k]));
      b = _mm256_add_epi32(b, weighted(row + kLanes, weights[k]));
      c = _mm256_add_epi32(c, weighted(row + 2 * kLanes, weights[k]));
      d = _mm256_add_epi32(d, weighted(row + 3 * kLanes, weights[k]));
    }
    store(a, out + place);
    store(b, out + place + kLanes);
    store(c, out + place + 2 * kLanes);
    store(d, out + place + 3 * kLanes);
  }
}

bool is_wide() {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  return wide;
}

#endif

}  // namespace

void resize_columns(const ResizeWeights& columns, int first, int left, int right, const uint8_t* lanes,
                    uint8_t* out) {
#if defined(__x86_64__)
  if (is_wide()) return columns_wide(columns, first, left, right, lanes, out);
#endif
  columns_anywhere(columns, first, left, right, lanes, out);
}

void resize_row(const ResizeWeights& rows, int first, int y, int count, const uint8_t* in, uint8_t* out) {
  const ResizeWeights::Taps& taps = rows.taps[static_cast<size_t>(y)];
  const int32_t* weights = &rows.weights[taps.weights];
  in += static_cast<ptrdiff_t>(taps.first - first) * count;
#if defined(__x86_64__)
  if (is_wide() && count >= kBlock) return row_wide(weights, taps.count, in, count, count, out);
#endif
  row_anywhere(weights, taps.count, in, count, 0, count, out);
}

}  // namespace lockstep::images
