#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace lockstep::interop {

struct Tolerance {
  double relative = 0;  // of b's value
  double absolute = 0;
};

struct TensorDifference {
  int64_t elements = 0;      // that are not equal; NaN equals NaN
  int64_t out_of_range = 0;  // by more than absolute + relative * |b|
  double max_absolute = 0;   // infinity where a number meets NaN or an infinity
  double max_relative = 0;   // infinity where b is 0
};

// Compares two host tensors of equal shape, whatever their dtypes, without a copy of the
// whole of them in another dtype.
TensorDifference compare_tensors(const at::Tensor& a, const at::Tensor& b, const Tolerance& tolerance);

}  // namespace lockstep::interop
