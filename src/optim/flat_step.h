#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>
#include <vector>

#include "optim/flat_kernels.h"

namespace lockstep::optim {

// step_range in several threads: those that LibTorch works with, or this one alone inside of
// such work. The same bits with any number of them.
void step_flat(const FlatRule& rule, const FlatMemory& memory);

struct FlatExtras {
  float gradient_factor = 1;  // of every gradient, in float32
  // Where defined, of one of these types and the parameter's strides: gets the updated
  // parameter.
  at::Tensor copy = {};
};

// A step of one parameter with its gradient. Parameter and states: float32, of the same
// strides, on the CPU, without gaps. The gradient may be float32, bfloat16 or float16; one
// with other strides is copied first. ConfigError: it is sparse, or of another type.
void step_tensor(const FlatRule& rule, const at::Tensor& parameter, const at::Tensor& gradient,
                 const at::Tensor& state = {}, const at::Tensor& second_state = {},
                 const FlatExtras& extras = {});

// Whether step_tensor can take a parameter.
bool is_flat(const at::Tensor& parameter);
// ConfigError names the first that step_tensor cannot take, and why.
void require_flat(std::string_view what, const std::vector<at::Tensor>& parameters);

}  // namespace lockstep::optim
