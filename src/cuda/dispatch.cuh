#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/tiles.h"
#include "cuda/vector.cuh"

namespace lockstep::cuda {

template <typename T, int kVectorWidth>
struct Kind {
  using Type = T;
  static constexpr int kWidth = kVectorWidth;
};

// Calls run(Kind<T, vector_width()>()).
template <typename Run>
void dispatch(Element element, int channels, bool is_aligned, const Run& run) {
  const auto with_width = [&](auto value) {
    using T = decltype(value);
    if (vector_width(element, channels, is_aligned) == kFullWidth<T>) {
      run(Kind<T, kFullWidth<T>>());
    } else {
      run(Kind<T, 1>());
    }
  };
  switch (element) {
    case Element::kFloat: return with_width(float());
    case Element::kHalf: return with_width(__half());
    case Element::kBFloat16: return with_width(__nv_bfloat16());
  }
}

template <typename Run>
void dispatch(bool flag, const Run& run) {
  if (flag) {
    run(std::true_type());
  } else {
    run(std::false_type());
  }
}

}  // namespace lockstep::cuda
