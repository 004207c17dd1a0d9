#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <optional>
#include <string_view>

namespace lockstep::engine {

// Arithmetic of one operation.
struct Cost {
  int64_t flops = 0;  // floating-point operations; two for a multiply-accumulate
  int64_t macs = 0;   // multiply-accumulates of matrix products, convolutions and attention

  Cost& operator+=(const Cost& other) {
    flops += other.flops;
    macs += other.macs;
    return *this;
  }
};

// Of an ATen operator ("aten::linear") with these inputs, by DeepSpeed's rules: matrix
// products exactly, norms as five operations an element, activations as one. Nothing for an
// operator that is not counted (views, copies, embeddings, dropout), or is counted by what
// it calls.
std::optional<Cost> cost_of(std::string_view op, c10::ArrayRef<const c10::IValue> inputs);

}  // namespace lockstep::engine
