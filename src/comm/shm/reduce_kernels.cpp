#include "comm/shm/reduce_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "base/narrow_float.h"

// Compiled with -O3 -ffp-contract=off: the mean is defined as a multiply and an add, and a fused
// multiply-add would round differently.
namespace lockstep::comm::shm {
namespace {

// Elements that are combined at a time, in an accumulator that stays in the first level cache.
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

// How elements are stored, and in which type they are combined. read() returns n elements to
// combine: in place if they need no conversion, else in the scratch memory.
template <typename Stored>
struct Access {
  using Combined = Stored;

  [[gnu::always_inline]] static inline const Stored* read(const std::byte* from, Stored*, size_t) {
    return reinterpret_cast<const Stored*>(from);
  }
  [[gnu::always_inline]] static inline void store(const Stored* from, std::byte* to, size_t n) {
    std::memcpy(to, from, n * sizeof(Stored));
  }
};

template <>
struct Access<BFloat16> {
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

template <>
struct Access<Half> {
  using Combined = float;

  static const float* read(const std::byte* from, float* to, size_t n) {
    base::widen_halves(reinterpret_cast<const uint16_t*>(from), to, n);
    return to;
  }
  static void store(const float* from, std::byte* to, size_t n) {
    base::narrow_to_halves(from, reinterpret_cast<uint16_t*>(to), n);
  }
};

template <Reduction kReduction, typename Stored>
[[gnu::always_inline]] inline void reduce_tiles(const ReduceArguments& arguments) {
  using Format = Access<Stored>;
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

template <typename Stored>
[[gnu::always_inline]] inline void reduce_typed(const ReduceArguments& arguments) {
  constexpr bool kFloating = !std::is_integral_v<Stored>;
  switch (arguments.reduction) {
    case Reduction::kSum: return reduce_tiles<Reduction::kSum, Stored>(arguments);
    case Reduction::kProduct: return reduce_tiles<Reduction::kProduct, Stored>(arguments);
    case Reduction::kMin: return reduce_tiles<Reduction::kMin, Stored>(arguments);
    case Reduction::kMax: return reduce_tiles<Reduction::kMax, Stored>(arguments);
    default: break;
  }
  if constexpr (kFloating) {
    reduce_tiles<Reduction::kMean, Stored>(arguments);
  } else if (arguments.reduction == Reduction::kBitAnd) {
    reduce_tiles<Reduction::kBitAnd, Stored>(arguments);
  } else if (arguments.reduction == Reduction::kBitOr) {
    reduce_tiles<Reduction::kBitOr, Stored>(arguments);
  } else {
    reduce_tiles<Reduction::kBitXor, Stored>(arguments);
  }
}

[[gnu::always_inline]] inline void reduce_any(const ReduceArguments& arguments) {
  switch (arguments.type) {
    case ElementType::kFloat: return reduce_typed<float>(arguments);
    case ElementType::kDouble: return reduce_typed<double>(arguments);
    case ElementType::kHalf: return reduce_typed<Half>(arguments);
    case ElementType::kBFloat16: return reduce_typed<BFloat16>(arguments);
    case ElementType::kInt8: return reduce_typed<int8_t>(arguments);
    case ElementType::kInt16: return reduce_typed<int16_t>(arguments);
    case ElementType::kInt32: return reduce_typed<int32_t>(arguments);
    case ElementType::kInt64: return reduce_typed<int64_t>(arguments);
    case ElementType::kUint8: return reduce_typed<uint8_t>(arguments);
    case ElementType::kBool: return reduce_typed<bool>(arguments);
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

__attribute__((target("avx2"))) void reduce_wide(const ReduceArguments& arguments) { reduce_any(arguments); }

}  // namespace

void reduce(const ReduceArguments& arguments) {
  static const bool wide = __builtin_cpu_supports("avx2") != 0;
  wide ? reduce_wide(arguments) : reduce_any(arguments);
}
#else
void reduce(const ReduceArguments& arguments) { reduce_any(arguments); }
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
