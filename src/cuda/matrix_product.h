#pragma once

#include <ATen/core/Tensor.h>
#include <cublasLt.h>

#include <array>
#include <map>

#include "base/mutex.h"

namespace lockstep::cuda {

// What cuBLASLt does with a product before it stores it.
enum class Epilogue {
  kBiasGelu,             // stores product + bias in `before`, and its gelu in the result
  kGeluBackwardBiasSum,  // result = product * gelu'(before), and bias = the sum of the result over the rows
};

// result = right * left^T, or right * left, of row-major matrices of one 16-bit type, whose rows are
// multiples of 16 bytes.
struct MatrixProduct {
  const at::Tensor& left;
  bool left_is_transposed;
  const at::Tensor& right;   // [rows, inner]
  const at::Tensor& result;  // [rows, columns]
  Epilogue epilogue;
  const at::Tensor& bias;    // [columns]
  const at::Tensor& before;  // [rows, columns]
};

// Products by cuBLASLt, for which LibTorch has no epilogue with gelu. Thread-safe; starts work on the current
// stream and waits for nothing.
class MatrixProducts {
 public:
  void run(const MatrixProduct& product);

 private:
  // Device, rows, columns, inner extent, element type, epilogue.
  using Key = std::array<int64_t, 6>;

  base::Mutex mutex_;
  std::map<Key, cublasLtMatmulAlgo_t> algorithms_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep::cuda
