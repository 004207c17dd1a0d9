#include "comm/shm/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/narrow_float.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// Compiled with -O3 -ffp-contract=off: a fused multiply-add would round the mean
// differently from the multiply and add that it is defined as.
namespace lockstep::comm::shm {
namespace {

// Elements that are combined at a time, in an accumulator that stays in the first
// level cache.
constexpr size_t kTile = 1024;

template <Reduction kReduction, typename T>
[[gnu::always_inline]] inline T combine(T a, T b) {
  constexpr bool kBool = std::is_same_v<T, bool>;
  if constexpr (kReduction == Reduction::kSum || kReduction == Reduction::kMean) {
    if constexpr (kBool) {
      return a | b;
    } else if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  } else if constexpr (kReduction == Reduction::kProduct) {
    if constexpr (kBool) {
      return a & b;
    } else if constexpr (std::is_integral_v<T>) {
      // 64-bit unsigned: smaller types would be promoted to a signed int.
      return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
    } else {
      return a * b;
    }
  } else if constexpr (kReduction == Reduction::kMin) {
    return a < b || a != a ? a : b;
  } else if constexpr (kReduction == Reduction::kMax) {
    return a > b || a != a ? a : b;
  } else if constexpr (kReduction == Reduction::kBitAnd) {
    return static_cast<T>(a & b);
  } else if constexpr (kReduction == Reduction::kBitOr) {
    return static_cast<T>(a | b);
  } else {
    return static_cast<T>(a ^ b);
  }
}

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

// How elements are stored, and what they are combined in. read() returns n elements
// to combine, in place where they need no conversion and else in the scratch.
template <typename Stored, bool kWide>
struct Access {
  using Combined = Stored;

  [[gnu::always_inline]] static inline const Stored* read(const std::byte* from, Stored*, size_t) {
    return reinterpret_cast<const Stored*>(from);
  }
  [[gnu::always_inline]] static inline void store(const Stored* from, std::byte* to, size_t n) {
    std::memcpy(to, from, n * sizeof(Stored));
  }
};

template <bool kWide>
struct Access<BFloat16, kWide> {
  using Combined = float;

  [[gnu::always_inline]] static inline const float* read(const std::byte* from, float* to, size_t n) {
    const auto* source = reinterpret_cast<const BFloat16*>(from);
    for (size_t i = 0; i < n; ++i) {
      to[i] = base::widen_bfloat16(source[i].bits);
    }
    return to;
  }
  [[gnu::always_inline]] static inline void store(const float* from, std::byte* to, size_t n) {
    auto* target = reinterpret_cast<BFloat16*>(to);
    for (size_t i = 0; i < n; ++i) {
      target[i] = {base::narrow_to_bfloat16(from[i])};
    }
  }
};

template <bool kWide>
struct Access<Half, kWide> {
  using Combined = float;

  [[gnu::always_inline]] static inline const float* read(const std::byte* from, float* to, size_t n) {
    const auto* source = reinterpret_cast<const uint16_t*>(from);
    for (size_t i = 0; i < n; ++i) {
      to[i] = base::widen_half(source[i]);
    }
    return to;
  }
  [[gnu::always_inline]] static inline void store(const float* from, std::byte* to, size_t n) {
    auto* target = reinterpret_cast<uint16_t*>(to);
    for (size_t i = 0; i < n; ++i) {
      target[i] = base::narrow_to_half(from[i]);
    }
  }
};

#if defined(__x86_64__)
template <>
struct Access<Half, true> {
  using Combined = float;

  static __attribute__((target("avx2,f16c"))) const float* read(const std::byte* from, float* to, size_t n) {
    const auto* source = reinterpret_cast<const uint16_t*>(from);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      _mm256_storeu_ps(to + i,
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(source + i))));
    }
    for (; i < n; ++i) {
      to[i] = base::widen_half(source[i]);
    }
    return to;
  }
  static __attribute__((target("avx2,f16c"))) void store(const float* from, std::byte* to, size_t n) {
    auto* target = reinterpret_cast<uint16_t*>(to);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
      const __m128i half =
          _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      _mm_storeu_si128(reinterpret_cast<__m128i*>(target + i), half);
    }
    for (; i < n; ++i) {
      target[i] = base::narrow_to_half(from[i]);
    }
  }
};
#endif

template <Reduction kReduction, typename Stored, bool kWide>
[[gnu::always_inline]] inline void reduce_tiles(const ReduceArguments& arguments) {
  using Format = Access<Stored, kWide>;
  using T = typename Format::Combined;
  alignas(64) T total[kTile];
  alignas(64) T scratch[kTile];
  alignas(64) T scratch2[kTile];
  const T factor = static_cast<T>(kReduction == Reduction::kMean ? 1.0 / arguments.num_sources : 1);
  const auto scaled = [=](T value) { return kReduction == Reduction::kMean ? value * factor : value; };
  for (size_t begin = 0; begin < arguments.numel; begin += kTile) {
    const size_t n = std::min(kTile, arguments.numel - begin);
    const size_t offset = arguments.offset_bytes + begin * sizeof(Stored);
    const T* first = Format::read(arguments.sources[0] + offset, scratch, n);
    if (arguments.num_sources == 1) {
      for (size_t i = 0; i < n; ++i) {
        total[i] = scaled(first[i]);
      }
    } else {
      const T* second = Format::read(arguments.sources[1] + offset, scratch2, n);
      for (size_t i = 0; i < n; ++i) {
        total[i] = combine<kReduction, T>(scaled(first[i]), scaled(second[i]));
      }
    }
    for (int source = 2; source < arguments.num_sources; ++source) {
      const T* next = Format::read(arguments.sources[source] + offset, scratch, n);
      for (size_t i = 0; i < n; ++i) {
        total[i] = combine<kReduction, T>(total[i], scaled(next[i]));
      }
    }
    for (int destination = 0; destination < arguments.num_destinations; ++destination) {
      Format::store(total, arguments.destinations[destination] + offset, n);
    }
  }
}

template <typename Stored, bool kWide>
[[gnu::always_inline]] inline void reduce_typed(const ReduceArguments& arguments) {
  constexpr bool kFloating = !std::is_integral_v<Stored>;
  switch (arguments.reduction) {
    case Reduction::kSum: return reduce_tiles<Reduction::kSum, Stored, kWide>(arguments);
    case Reduction::kProduct: return reduce_tiles<Reduction::kProduct, Stored, kWide>(arguments);
    case Reduction::kMin: return reduce_tiles<Reduction::kMin, Stored, kWide>(arguments);
    case Reduction::kMax: return reduce_tiles<Reduction::kMax, Stored, kWide>(arguments);
    default: break;
  }
  if constexpr (kFloating) {
    reduce_tiles<Reduction::kMean, Stored, kWide>(arguments);
  } else if (arguments.reduction == Reduction::kBitAnd) {
    reduce_tiles<Reduction::kBitAnd, Stored, kWide>(arguments);
  } else if (arguments.reduction == Reduction::kBitOr) {
    reduce_tiles<Reduction::kBitOr, Stored, kWide>(arguments);
  } else {
    reduce_tiles<Reduction::kBitXor, Stored, kWide>(arguments);
  }
}

template <bool kWide>
[[gnu::always_inline]] inline void reduce_any(const ReduceArguments& arguments) {
  switch (arguments.type) {
    case ElementType::kFloat: return reduce_typed<float, kWide>(arguments);
    case ElementType::kDouble: return reduce_typed<double, kWide>(arguments);
    case ElementType::kHalf: return reduce_typed<Half, kWide>(arguments);
    case ElementType::kBFloat16: return reduce_typed<BFloat16, kWide>(arguments);
    case ElementType::kInt8: return reduce_typed<int8_t, kWide>(arguments);
    case ElementType::kInt16: return reduce_typed<int16_t, kWide>(arguments);
    case ElementType::kInt32: return reduce_typed<int32_t, kWide>(arguments);
    case ElementType::kInt64: return reduce_typed<int64_t, kWide>(arguments);
    case ElementType::kUint8: return reduce_typed<uint8_t, kWide>(arguments);
    case ElementType::kBool: return reduce_typed<bool, kWide>(arguments);
  }
}

}  // namespace

const char* to_string(Reduction reduction) {
  switch (reduction) {
    case Reduction::kSum: return "sum";
    case Reduction::kMean: return "mean";
    case Reduction::kProduct: return "product";
    case Reduction::kMin: return "min";
    case Reduction::kMax: return "max";
    case Reduction::kBitAnd: return "bit and";
    case Reduction::kBitOr: return "bit or";
    case Reduction::kBitXor: return "bit xor";
  }
  return "unknown";
}

#if defined(__x86_64__)
namespace {

__attribute__((target("avx2,f16c"))) void reduce_wide(const ReduceArguments& arguments) {
  reduce_any<true>(arguments);
}

}  // namespace

void reduce(const ReduceArguments& arguments) {
  // Every CPU with AVX2 has F16C too.
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  wide ? reduce_wide(arguments) : reduce_any<false>(arguments);
}
#else
void reduce(const ReduceArguments& arguments) { reduce_any<false>(arguments); }
#endif

bool can_reduce(Reduction reduction, ElementType type) {
  const bool floating = type <= ElementType::kBFloat16;
  switch (reduction) {
    case Reduction::kMean: return floating;
    case Reduction::kBitAnd:
    case Reduction::kBitOr:
    case Reduction::kBitXor: return !floating;
    default: return true;
  }
}

}  // namespace lockstep::comm::shm
