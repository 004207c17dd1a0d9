#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>

namespace lockstep::test {

// Values in [-0.5, 0.5) that any language computes exactly: multiples of 2^-16 from
// integer arithmetic. Another salt gives other values.
//   ((i * 40503 + salt * 9973 + 7) * 25173 + 13849) mod 65536 / 65536 - 0.5
at::Tensor formula(at::IntArrayRef sizes, int64_t salt);

// The same as a leaf that takes gradients.
at::Tensor trained_formula(at::IntArrayRef sizes, int64_t salt = 1);

// What a rank trains on in a step: four samples of three features.
at::Tensor batch_of(int rank, int step = 0);

// Sets every parameter to 2 * formula * 2^-k, where 2^k is the least power of two
// not below sqrt(fan-in), with its index as salt.
void set_parameters(torch::nn::Module& module, int64_t salt = 0);

// Bit for bit, whatever the strides and the devices; both undefined counts as equal.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

}  // namespace lockstep::test
