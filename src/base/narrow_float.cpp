#include "base/narrow_float.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lockstep::base {
namespace {

#if defined(__x86_64__)
// Both convert eight elements at a time and return how many they converted.
__attribute__((target("avx2,f16c"))) size_t widen_eights(const uint16_t* from, float* to, size_t numel) {
  size_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
  return i;
}

__attribute__((target("avx2,f16c"))) size_t narrow_eights(const float* from, uint16_t* to, size_t numel) {
  size_t i = 0;
  for (; i + 8 <= numel; i += 8) {
    const __m128i half =
        _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i), half);
  }
  return i;
}

// Every CPU with AVX2 has F16C too.
bool has_conversion() {
  static const bool has = __builtin_cpu_supports("avx2") != 0;
  return has;
}
#endif

}  // namespace

void widen_halves(const uint16_t* from, float* to, size_t numel) {
  size_t i = 0;
#if defined(__x86_64__)
  if (has_conversion()) i = widen_eights(from, to, numel);
#endif
  for (; i < numel; ++i) to[i] = widen_half(from[i]);
}

void narrow_to_halves(const float* from, uint16_t* to, size_t numel) {
  size_t i = 0;
#if defined(__x86_64__)
  if (has_conversion()) i = narrow_eights(from, to, numel);
#endif
  for (; i < numel; ++i) to[i] = narrow_to_half(from[i]);
}

}  // namespace lockstep::base
